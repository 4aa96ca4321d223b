"""Gradients of embeddings stay rows, as Keras's optimizers and clipping get them: one for each time that a token
comes."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import lingpipe
from tests.plain_stack import mean_square

_TOKENS = np.random.default_rng(0).integers(0, 5, [8, 3]).astype('int32')
_TARGETS = np.random.default_rng(1).normal(size=[8, 3, 2]).astype('float32')


def _make(use):
    keras.utils.set_random_seed(0)
    tokens = keras.Input([3], dtype='int32')
    table = keras.layers.Embedding(7, 4, embeddings_regularizer='l2' if use == 'regularized' else None)
    hidden = keras.layers.Dense(4, activation='tanh')(table(tokens))
    if use == 'twice':
        hidden = hidden + table(keras.ops.flip(tokens, axis=1))
    return keras.Model(tokens, keras.layers.Dense(2)(hidden))


@pytest.mark.parametrize('use, is_sparse', [('twice', True), ('regularized', False)])
def test_gradients_have_the_type_that_keras_gives_them(use, is_sparse, assert_close):
    model, pipe = _make(use), lingpipe.GPipeLayer.from_keras(_make(use), num_partitions=2, num_micro_batches=2)
    found = pipe.value_and_grad(mean_square, _TOKENS, _TARGETS).gradients
    assert isinstance(found[0], tf.IndexedSlices) == is_sparse
    for each in model, pipe:
        with tf.GradientTape() as tape:
            loss = mean_square(_TARGETS, each(_TOKENS, training=True)) + sum(each.losses)
        gradients = tape.gradient(loss, [variable.value for variable in each.trainable_variables])
        assert isinstance(gradients[0], tf.IndexedSlices) or not is_sparse
        assert_close(*[list(map(tf.convert_to_tensor, values)) for values in (gradients[1:], found[1:])])
