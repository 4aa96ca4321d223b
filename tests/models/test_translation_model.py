import keras
import numpy as np
import pytest
import tensorflow as tf

from lingpipe.layers import translation
from lingpipe.models import language_model, translation_model

RNG = np.random.default_rng(0)
SOURCE = tf.constant(RNG.integers(1, 7, (4, 6)), tf.int32)
LENGTH = 5


@pytest.fixture(scope='module')
def task():
    """A task with weights that make it sure of what it says."""
    keras.utils.set_random_seed(0)
    params = translation_model.TranslationModel.Params().Set(name='task')
    params.body.Set(name='body', num_partitions=3, num_micro_batches=2, layers=translation.transformer_nmt_layers(
        num_layers=1, vocab_size=7, model_dim=8, hidden_dim=16, num_heads=2))
    made = params.Instantiate()
    made.body.build_from_specs({'source': SOURCE, 'target': tf.zeros([4, LENGTH], tf.int32)})
    for variable in made.body.trainable_variables:
        variable.assign(variable + 0.3 * RNG.normal(size=variable.shape))
    return made


def logits_of(task, target):
    before = np.pad(np.array(target), [[0, 0], [1, 0]])[:, :-1]
    return task.body({'source': SOURCE, 'target': tf.constant(before, tf.int32)}).numpy()


def greedy(task):
    """Greedy decoding by the whole pipeline, once for each token."""
    tokens, ended = np.zeros([4, LENGTH], np.int64), np.zeros(4, bool)
    for place in range(LENGTH):
        tokens[:, place] = np.where(ended, 0, logits_of(task, tokens)[:, place].argmax(-1))
        ended |= tokens[:, place] == 0
    return tokens


def translate(task, **arguments):
    return tf.function(lambda: task.translate(SOURCE, LENGTH, **arguments), autograph=False)().numpy()


def test_the_loss_is_that_of_language_models(task):
    labels, logits = tf.constant(RNG.integers(0, 7, (4, 5)),
                                 tf.int32), tf.constant(RNG.normal(size=(4, 5, 7)), tf.float32)
    weights = tf.constant(RNG.integers(0, 2, (4, 5)), tf.float32)
    ours = task.loss((labels, weights), logits)
    theirs = language_model.LanguageModel.loss(_Smoothed(), (labels, weights, tf.ones([4, 5])), logits)
    for name in ('loss', 'accuracy'):
        np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-6)
    np.testing.assert_allclose(ours['log_perplexity'], ours['loss'], rtol=1e-6)


class _Smoothed:
    params = language_model.LanguageModel.Params()


def test_translations_take_the_likeliest_next_token(task):
    expected = greedy(task)
    assert len({tuple(row) for row in expected.tolist()}) > 1
    np.testing.assert_array_equal(translate(task), expected)


def test_exact_match_counts_whole_translations_of_rows_that_count(task):
    labels = greedy(task)
    weights = (np.cumsum(labels == 0, 1) - (labels == 0) == 0).astype(np.float32)
    weights[3] = 0  # fills up the batch
    labels[1, 0] = labels[1, 0] % 6 + 1  # wrong
    targets = tf.constant(labels, tf.int32), tf.constant(weights)
    metrics = task.decoding_metrics({'source': SOURCE}, targets, lambda variable: variable.value)
    assert [float(value) for value in metrics['exact_match']] == [2.0, 3.0]


def test_translations_are_made_with_the_values_that_are_read(task):
    averages = {id(variable): tf.zeros(variable.shape) for variable in task.body.variables}
    tokens = translate(task, read=lambda variable: averages[id(variable)])
    assert not tokens.any()  # all tokens are equally likely, and the first of them is the end
