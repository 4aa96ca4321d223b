"""Gradients of embeddings stay rows, as Keras's optimizers and clipping get them: one for each time that a token
comes."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import optimizers

import lingpipe
from lingpipe.stages import micro_batches
from tests import needs

_TOKENS = np.random.default_rng(0).integers(0, 5, [8, 3]).astype('int32')
_TARGETS = np.random.default_rng(1).normal(size=[8, 3, 2]).astype('float32')


def _make(use='once'):
    keras.utils.set_random_seed(0)
    tokens = keras.Input([3], dtype='int32')
    table = keras.layers.Embedding(7, 4, embeddings_regularizer='l2' if use == 'regularized' else None)
    hidden = keras.layers.Dense(4, activation='tanh')(table(tokens))
    if use == 'twice':
        hidden = hidden + table(keras.ops.flip(tokens, axis=1))
    if use == 'tied':
        hidden = keras.ops.matmul(hidden, keras.ops.transpose(table.embeddings))
    return keras.Model(tokens, keras.layers.Dense(2)(hidden))


def _trained(model, optimizer):
    model.compile(optimizer, 'mse')
    model.fit(_TOKENS, _TARGETS, batch_size=8, epochs=2, shuffle=False, verbose=0)
    return model.get_weights()


@pytest.mark.parametrize('optimizer, options, use, fields', [
    (optimizers.Adam, {}, 'once', {'num_micro_batches': 3, 'schedule': '1f1b'}),
    (optimizers.Adam, {'clipvalue': 0.005}, 'twice', {'num_micro_batches': 2, 'recompute': 'layer'}),
    (optimizers.SGD, {'global_clipnorm': 0.02}, 'once', {'num_micro_batches': 2, 'num_replicas': 2}),
    (optimizers.Adagrad, {'gradient_accumulation_steps': 2}, 'tied',
     {'num_micro_batches': 2, 'schedule': 'zb_h1', 'recompute': 'none'}),
    (optimizers.RMSprop, {}, 'regularized', {'num_micro_batches': 2, 'jit_compile': True})])
@needs.xla_on_cpus
def test_an_optimizer_updates_embeddings_as_in_keras(optimizer, options, use, fields, assert_close):
    pipe = lingpipe.GPipeLayer.from_keras(_make(use), num_partitions=2, **fields)
    found = _trained(lingpipe.PipelineModel(pipe), optimizer(0.05, **options))
    assert_close(found, _trained(_make(use), optimizer(0.05, **options)))


@pytest.mark.parametrize('use, is_sparse', [('twice', True), ('regularized', False)])
def test_gradients_have_the_type_that_keras_gives_them(use, is_sparse, assert_close):
    def error(y_true, outputs):
        return tf.reduce_mean(tf.square(outputs - y_true))

    model, pipe = _make(use), lingpipe.GPipeLayer.from_keras(_make(use), num_partitions=2, num_micro_batches=2)
    found = pipe.value_and_grad(error, _TOKENS, _TARGETS).gradients
    assert isinstance(found[0], tf.IndexedSlices) == is_sparse
    for each in model, pipe:
        with tf.GradientTape() as tape:
            loss = error(_TARGETS, each(_TOKENS, training=True)) + sum(each.losses)
        gradients = tape.gradient(loss, [variable.value for variable in each.trainable_variables])
        assert isinstance(gradients[0], tf.IndexedSlices) or not is_sparse
        assert_close(*[list(map(tf.convert_to_tensor, values)) for values in (gradients[1:], found[1:])])


def test_rows_and_tensors_add_up_to_a_tensor():
    rows = micro_batches.Rows(tf.ones([3, 2]), tf.constant([0, 2, 0]))
    np.testing.assert_array_equal(micro_batches.total([rows, tf.ones([3, 2])], [3, 2]), [[3, 3], [1, 1], [2, 2]])
    together = micro_batches.total([rows, rows], [3, 2])
    np.testing.assert_array_equal(together.indices, [0, 2, 0, 0, 2, 0])
