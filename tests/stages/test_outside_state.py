"""Layers that keep state in variables and tables of TensorFlow, against the plain model micro-batch by micro-batch."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import lingpipe

layers, loss = keras.layers, keras.losses.MeanSquaredError()
X = (np.random.default_rng(0).normal(size=(8, 4)) * np.arange(1, 9)[:, None]).astype('float32')
Y = X[:, :1]


class Stateful(layers.Layer):
    def compute_output_spec(self, x):
        return keras.KerasTensor(x.shape, x.dtype)


class ScalesByVariable(Stateful):
    def build(self, shape):
        self.scale = tf.Variable(1.0, trainable=False)

    def call(self, x):
        self.scale.assign(self.scale * 0.5 + 0.5 * tf.reduce_mean(tf.square(x)))
        return tf.tanh(x / (0.1 + self.scale.read_value()))


class ScalesInBranch(ScalesByVariable):
    def call(self, x):
        tf.cond(tf.reduce_mean(x) > 0.0, lambda: self.scale.assign_add(1.0), lambda: self.scale.assign(0.5))
        return tf.tanh(x / (0.1 + self.scale.read_value()))


class ScalesByTable(Stateful):
    def build(self, shape):
        self.table = tf.lookup.experimental.MutableHashTable(tf.string, tf.float32, 1.0)

    def call(self, x):
        before = tf.ensure_shape(self.table.lookup(tf.constant('scale')), [])
        self.table.insert(tf.constant('scale'), before + tf.reduce_mean(tf.square(x)))
        return tf.tanh(x / before)


def make_model(kind):
    keras.utils.set_random_seed(0)
    return keras.Sequential([
        keras.Input([4]), layers.Dense(4), kind(), layers.Dense(4, activation='tanh'), layers.Dense(1)])


def pipe_of(kind, **fields):
    fields = {'num_partitions': 2, 'num_micro_batches': 4, 'partition_by': [3, 4], **fields}
    return lingpipe.GPipeLayer.from_keras(make_model(kind), **fields)


@pytest.mark.parametrize('recompute', ['none', 'stage', 'selective', 'layer'])
@pytest.mark.parametrize('kind', [ScalesByVariable, ScalesInBranch, ScalesByTable])
def test_backward_uses_the_state_of_forward(kind, recompute, assert_close):
    plain = make_model(kind)
    with tf.GradientTape() as tape:
        value = loss(Y, tf.concat([plain(X[row:row + 2]) for row in range(0, 8, 2)], 0))
    expected = tape.gradient(value, [variable.value for variable in plain.trainable_variables])
    out = pipe_of(kind, recompute=recompute).value_and_grad(loss, X, Y)
    assert_close((out.loss, out.gradients), (value, expected))


def shares(in_first, in_second):
    def layer(function):
        return layers.Lambda(function, output_shape=(4,))

    model = keras.Sequential([keras.Input([4]), layer(in_first), layers.Dense(4), layer(in_second), layers.Dense(1)])
    return lingpipe.GPipeLayer.from_keras(model, num_partitions=2, num_micro_batches=4, partition_by=[2, 4])


def test_state_that_partitions_or_replicas_share_is_refused():
    variable = tf.Variable(2.0, trainable=False, name='count')

    def count(x):
        variable.assign_add(1.0)
        return x

    def scale(x):
        return x * variable

    with pytest.raises(ValueError, match="partition 1 changes 'count:0', .*partition 0 uses it too.*by add_weight"):
        shares(scale, count).value_and_grad(loss, X, Y)
    shares(scale, scale).value_and_grad(loss, X, Y)
    with pytest.raises(ValueError, match='partition 0 changes .*num_replicas=2 share it'):
        pipe_of(ScalesByVariable, num_replicas=2, num_micro_batches=2).value_and_grad(loss, X, Y)


def test_an_empty_micro_batch_would_change_state_and_is_refused():
    """It computes on a row that does not count, but the variable would count it."""
    pipe = pipe_of(ScalesByVariable)
    step = tf.function(lambda x, y: pipe.value_and_grad(loss, x, y).loss,
                       input_signature=[tf.TensorSpec([None, size]) for size in (4, 1)])
    step(X, Y)
    before = pipe.model.layers[1].scale.numpy()
    with pytest.raises(tf.errors.InvalidArgumentError, match='fewer rows than num_micro_batches'):
        step(X[:3], Y[:3])
    assert pipe.model.layers[1].scale.numpy() == before


def test_tables_are_refused_where_xla_compiles():
    model = keras.Sequential([keras.Input([2], dtype='int32'), layers.IntegerLookup(vocabulary=[2, 7]),
                              layers.Embedding(4, 3), layers.Flatten(), layers.Dense(1)])
    pipe = lingpipe.GPipeLayer.from_keras(model, num_micro_batches=2, jit_compile=True)
    with pytest.raises(ValueError, match='XLA cannot compile .* Set jit_compile=False'):
        pipe.value_and_grad(loss, np.array([[2, 7]] * 4), Y[:4])


def test_variables_of_another_device_are_refused_where_xla_compiles():
    pipe = pipe_of(ScalesByVariable, partition_by=[1, 4], jit_compile=True)
    with pytest.raises(ValueError, match="Variable:0', .* of TensorFlow on .*CPU:0, .*partition is on .*CPU:1: XLA"):
        pipe.value_and_grad(loss, X, Y)
