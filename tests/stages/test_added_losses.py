"""A loss that a layer adds counts as in the plain model, be it a sum over the rows of the batch or a mean, or is refused."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

import lingpipe
from lingpipe.stages import row_dependence, row_rules
from tests.plain_stack import loss_and_gradients

_SUMS = {
    'sum': lambda x: ops.sum(ops.square(x)),
    'divergence': lambda x: -0.5 * ops.sum(1 + x - ops.square(x) - ops.exp(x)),
    'by_features': lambda x: ops.sum(x * x) / ops.cast(tf.shape(x)[1], 'float32'),
    'half_squares': tf.nn.l2_loss,
    'mean_times_rows': lambda x: ops.mean(x * x) * ops.cast(ops.shape(x)[0], 'float32'),
    'mean_times_size': lambda x: ops.mean(x * x) * ops.cast(ops.size(x), 'float32'),
    'trace': lambda x: ops.sum(ops.matmul(ops.transpose(x), x)),
    'dropped_out': lambda x: ops.sum(tf.nn.experimental.stateless_dropout(x, 0.5, seed=[1, 2])),
    'dilated': lambda x: tf.reduce_sum(tf.nn.convolution(x[..., None], tf.ones([2, 1, 1]), padding='SAME', dilations=2)),
    'stepwise': lambda x: ops.sum(tf.map_fn(lambda row: ops.tanh(row), x)),
    'contraction': lambda x: ops.einsum('bi,bi->', x, x)}
_MEANS = {
    'mean': lambda x: ops.mean(ops.square(x)),
    'mean_of_sums': lambda x: ops.mean(ops.sum(ops.square(x), -1)),
    'sum_by_rows': lambda x: ops.sum(ops.abs(x)) / ops.cast(ops.shape(x)[0], 'float32')}
_OTHERS = {
    'masked_mean': lambda x: ops.sum(ops.relu(x)) / (1e-6 + ops.sum(ops.cast(x > 0, 'float32'))),
    'root': lambda x: ops.sqrt(ops.sum(ops.square(x))),
    'decided': lambda x: ops.mean(tf.cond(ops.sum(x) > 0, lambda: x, lambda: -x)),
    'variance': lambda x: ops.mean(ops.square(x - ops.mean(x, 0))),
    'balance': lambda x: ops.sum(ops.mean(ops.softmax(x), 0) * ops.mean(x, 0)),
    'hidden': lambda x: tf.ensure_shape(tf.numpy_function(np.sum, [x], tf.float32), []),
    'largest': ops.max}


@pytest.mark.parametrize('name', [*_SUMS, *_MEANS, *_OTHERS])
def test_sums_and_means_are_known_from_other_losses(name):
    traces = []
    for num_rows in row_rules.NUM_ROWS:
        with tf.Graph().as_default():
            x = tf.compat.v1.placeholder(tf.float32, [num_rows, 3])
            traces.append((x, {**_SUMS, **_MEANS, **_OTHERS}[name](x)))
    (x, loss), (other_x, other) = traces
    wanted = True if name in _SUMS else False if name in _MEANS else None
    assert row_dependence.are_sums([loss], [(x, other_x)], [], other.graph) == [wanted]


class LossyLayer(layers.Layer):
    """Scales its inputs, and adds a sum over rows, a loss for each row, a mean, and one of its weight alone."""

    def build(self, shape):
        self.scale = self.add_weight(shape=shape[-1:], initializer='ones')

    def call(self, inputs):
        outputs = inputs * self.scale
        for loss in (ops.sum(outputs**2), ops.mean(outputs**2, -1), ops.mean(outputs), ops.sum(self.scale**2)):
            self.add_loss(0.1 * loss)
        return outputs


def _make():
    keras.utils.set_random_seed(0)
    inputs = keras.Input([4])
    hidden = LossyLayer()(layers.Dense(3, activation='tanh')(inputs))
    return keras.Model(inputs, LossyLayer()(layers.Dense(2)(hidden)))


def _squared_error(y_true, outputs):
    return tf.reduce_mean(tf.square(outputs - y_true))


@pytest.mark.parametrize('num_rows, num_micro_batches, num_replicas', [
    (7, 4, 1), (3, 6, 1), pytest.param(8, 2, 2, marks=pytest.mark.slow)])  # the second has micro-batches without rows
def test_added_sums_and_means_count_as_in_keras(num_rows, num_micro_batches, num_replicas, assert_close):
    random = np.random.default_rng(0)
    x, y = (random.normal(size=[num_rows, size]).astype('float32') for size in (4, 2))
    expected = loss_and_gradients(_make(), _squared_error, x, y)
    pipe = lingpipe.GPipeLayer.from_keras(_make(), num_partitions=2, num_micro_batches=num_micro_batches,
                                          num_replicas=num_replicas, schedule='1f1b')
    weights, known = [variable.value for variable in pipe.trainable_variables], num_rows if num_rows > 6 else None

    @tf.function(input_signature=[tf.TensorSpec([known, 4]), tf.TensorSpec([known, 2])])
    def both(x, y):
        found = pipe.value_and_grad(_squared_error, x, y)
        with tf.GradientTape() as tape:
            loss = _squared_error(y, pipe(x, training=True)) + sum(pipe.losses)
        return (found.loss, found.gradients), (loss, tape.gradient(loss, weights))

    for found in both(x, y):
        assert_close(found, expected)


@pytest.mark.parametrize('make', [
    lambda: [layers.Embedding(50, 4), layers.LSTM(4, return_sequences=True, recurrent_dropout=0.1)],
    lambda: [layers.Embedding(50, 4, mask_zero=True), layers.Bidirectional(layers.GRU(3))],
    lambda: [layers.Embedding(50, 4), layers.Conv1D(3, 3, dilation_rate=2), layers.MaxPooling1D(), layers.Flatten()]])
def test_activity_regularizers_behind_layers_of_keras_are_known(make):
    penalised = layers.Dense(3, activity_regularizer=keras.regularizers.L1L2(0.1, 0.1))
    pipe = lingpipe.GPipeLayer.from_keras(
        keras.Sequential([keras.Input([8], dtype='int32'), *make(), penalised]), num_micro_batches=2)
    x = np.random.default_rng(0).integers(0, 50, [4, 8])
    pipe(x, training=True)
    assert pipe.losses


class OfTwoRows(layers.Layer):
    """Cannot do with other numbers of rows."""

    def call(self, inputs):
        self.add_loss(ops.mean(inputs))
        return inputs + tf.zeros([2, 1])

    def compute_output_spec(self, inputs):
        return keras.KerasTensor(inputs.shape, inputs.dtype)


class Masked(layers.Layer):
    """Adds the mean of the positive values only."""

    def call(self, inputs):
        self.add_loss(_OTHERS['masked_mean'](inputs))
        return inputs


def _gradients(layer, num_micro_batches, added_losses='exact'):
    """Return those of batches of two rows for each micro-batch."""
    inputs = keras.Input([4])
    pipe = lingpipe.GPipeLayer.from_keras(
        keras.Model(inputs, layer(name='lossy')(layers.Dense(4)(inputs))), num_partitions=1,
        num_micro_batches=num_micro_batches, added_losses=added_losses)
    x = np.ones([2 * num_micro_batches, 4], 'float32')
    return pipe.value_and_grad(keras.losses.MeanSquaredError(), x, x)


@pytest.mark.parametrize('layer', [OfTwoRows, Masked])
def test_unproven_losses_are_refused_with_several_micro_batches(layer):
    with pytest.raises(ValueError, match="lossy.*num_micro_batches=1.*added_losses='averaged'"):
        _gradients(layer, num_micro_batches=2)
    _gradients(layer, num_micro_batches=2, added_losses='averaged')
    _gradients(layer, num_micro_batches=1)
