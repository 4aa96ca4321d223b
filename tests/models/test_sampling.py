import numpy as np
import pytest
import tensorflow as tf

from lingpipe.models import sampling
from tests import needs

LOGITS = tf.constant([[0.0, 2.0, 1.0, -1.0]])


def frequencies(**fields):
    chosen = sampling.Sampling(**fields).choose(tf.tile(LOGITS, [20_000, 1]), tf.constant([0, 0]))
    return np.bincount(chosen, minlength=4) / 20_000


def test_tokens_come_as_often_as_the_softmax_of_the_tempered_logits_says():
    expected = np.exp(LOGITS[0] / 0.7)
    np.testing.assert_allclose(frequencies(temperature=0.7, top_k=0), expected / expected.sum(), atol=0.02)
    np.testing.assert_allclose(frequencies(temperature=0.7, top_k=99), expected / expected.sum(), atol=0.02)


def test_only_the_likeliest_have_a_chance():
    expected = np.exp([-np.inf, 2.0, 1.0, -np.inf])
    np.testing.assert_allclose(frequencies(temperature=1.0, top_k=2), expected / expected.sum(), atol=0.02)
    np.testing.assert_array_equal(frequencies(temperature=5.0, top_k=1), [0, 1, 0, 0])


def test_a_nucleus_ends_with_the_token_that_reaches_the_sum():
    """The probabilities are 0.64, 0.24, 0.09 and 0.03."""
    two = np.exp([-np.inf, 2.0, 1.0, -np.inf])
    np.testing.assert_allclose(frequencies(temperature=1.0, top_k=0, top_p=0.8), two / two.sum(), atol=0.02)
    np.testing.assert_array_equal(frequencies(temperature=1.0, top_k=0, top_p=0.6), [0, 1, 0, 0])


def test_draws_differ_and_repeat():
    logits = tf.zeros([1, 1000])
    draws = [int(sampling.Sampling(1.0, 0).choose(logits, tf.constant(seed))[0])
             for seed in ((0, 0), (0, 1), (1, 0), (0, 0))]
    assert draws[0] == draws[3] and len(set(draws)) == 3


@pytest.mark.parametrize('fields', [{'temperature': -0.1}, {'temperature': float('nan')}, {'temperature': 1e-40}, {'top_k': -1},
                                    {'top_p': 0.0}, {'seed': -1}])
def test_what_cannot_work_is_named(fields):
    (name, _), = fields.items()
    with pytest.raises(ValueError, match=f'{name}=.*Set it to'):
        sampling.Sampling(**fields).validate()


@needs.keras_hub
def test_rounding_moves_no_draw_among_the_likeliest():
    random = np.random.default_rng(0)
    logits = random.permutation([*random.normal(3, size=10), *np.zeros(90)])
    rounded = [tf.nn.softmax([logits + 1e-6 * random.normal(size=100)]) for _ in range(2)]
    samplers = [sampling.Sampling(temperature=0.8, top_k=10).keras_hub_sampler(100) for _ in rounded]
    draws = [[int(sampler.get_next_token(tf.cast(probabilities, tf.float32))[0]) for _ in range(50)]
             for sampler, probabilities in zip(samplers, rounded)]
    assert draws[0] == draws[1] and set(draws[0]) <= set(np.argsort(logits)[-10:]) and len(set(draws[0])) > 5
