import keras
import numpy as np
import pytest

from lingpipe.layers import attention
from tests.layers import transformer_reference as reference


def make_attention(**fields):
    layer = attention.MultiHeadAttention.Params().Set(name='attention', num_heads=2, **fields).Instantiate()
    layer.build((None, 5, 8))
    rng = np.random.default_rng(0)
    layer.set_weights([rng.normal(size=weight.shape) / 2 for weight in layer.get_weights()])
    return layer


X = np.random.default_rng(1).normal(size=(3, 5, 8)).astype(np.float32)


@pytest.mark.parametrize('is_causal', [True, False])
@pytest.mark.parametrize('is_rotary', [True, False])
def test_attention_is_that_of_the_formula(is_causal, is_rotary):
    layer = make_attention(is_causal=is_causal, use_rotary_positions=is_rotary)
    expected = [reference.attention(x, layer.get_weights(), 2, is_causal, is_rotary) for x in X]
    np.testing.assert_allclose(layer(X), expected, atol=1e-5)


@pytest.mark.parametrize('is_causal', [True, False])
def test_nobody_attends_to_padding(is_causal):
    layer = make_attention(is_causal=is_causal)
    mask = np.array([[True] * 5, [True, True, True, False, False], [True, False, True, True, False]])
    expected = [reference.attention(x, layer.get_weights(), 2, is_causal, allowed=row) for x, row in zip(X, mask)]
    np.testing.assert_allclose(layer(X, mask=mask), expected, atol=1e-5)


def test_drop_out_keeps_the_mean_of_the_weights_and_is_for_training_only():
    layer = make_attention(atten_dropout_prob=0.5)
    many = np.repeat(X[:1], 4000, 0)
    np.testing.assert_allclose(layer(many, training=True).numpy().mean(0), layer(X[:1])[0], atol=0.15)
    np.testing.assert_array_equal(layer(X), make_attention()(X))


def test_heads_of_a_size_of_their_own_are_those_of_keras():
    layer = attention.MultiHeadAttention.Params().Set(name='attention', num_heads=2, dim_per_head=3,
                                                      is_causal=False).Instantiate()
    layer.build((None, 5, 8))
    kernel, bias, output_kernel, output_bias = layer.get_weights()
    theirs = keras.layers.MultiHeadAttention(2, 3)
    theirs.build((None, 5, 8), (None, 5, 8))
    parts = [part for pair in zip(np.split(kernel, 3, 1), np.split(bias, 3)) for part in pair] + [
        output_kernel, output_bias]
    theirs.set_weights([part.reshape(weight.shape) for part, weight in zip(parts, theirs.get_weights(), strict=True)])
    np.testing.assert_allclose(layer(X), theirs(X, X), atol=1e-5)
