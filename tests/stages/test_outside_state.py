"""Variables and tables of TensorFlow in layers: reading them equals the plain model, changing them is refused."""

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


class ScalesByTableInFunction(ScalesByTable):
    call = tf.function(ScalesByTable.call)


class DrawsAndWrites(Stateful):
    """Draws numbers that add nothing, and writes a curve."""

    def build(self, shape):
        self.generator = tf.random.Generator.from_seed(1)

    @tf.function
    def call(self, x):
        tf.summary.scalar('mean', tf.reduce_mean(x), step=0)
        return tf.tanh(x / 2.0) + tf.map_fn(lambda row: 0.0 * self.generator.normal([4]), x)


def make_model(kind):
    keras.utils.set_random_seed(0)
    return keras.Sequential([
        keras.Input([4]), layers.Dense(4), kind(), layers.Dense(4, activation='tanh'), layers.Dense(1)])


def pipe_of(kind, **fields):
    fields = {'num_partitions': 2, 'num_micro_batches': 4, 'partition_by': [3, 4], **fields}
    return lingpipe.GPipeLayer.from_keras(make_model(kind), **fields)


class DividesByVariable(Stateful):
    """Reads a variable that its call does not change."""

    def build(self, shape):
        self.scale = tf.Variable(2.0, trainable=False)

    def call(self, x):
        return tf.tanh(x / self.scale)


@pytest.mark.parametrize('kind', [ScalesByVariable, ScalesInBranch, ScalesByTable, ScalesByTableInFunction])
def test_a_change_of_what_keras_does_not_know_is_refused(kind):
    with pytest.raises(ValueError, match='partition 0 changes (the tf.Variable|a table,) .* Make it by add_weight'):
        pipe_of(kind).value_and_grad(loss, X, Y)


@pytest.mark.parametrize('kind, recompute', [
    (DividesByVariable, 'none'), (DividesByVariable, 'stage'), (DrawsAndWrites, 'none')])
def test_what_changes_no_result_is_taken(kind, recompute, assert_close, tmp_path):
    plain = make_model(kind)
    with tf.GradientTape() as tape:
        value = loss(Y, plain(X))
    expected = tape.gradient(value, [variable.value for variable in plain.trainable_variables])
    with tf.summary.create_file_writer(str(tmp_path)).as_default():
        out = pipe_of(kind, recompute=recompute, num_replicas=2, num_micro_batches=2).value_and_grad(loss, X, Y)
    assert_close((out.loss, out.gradients), (value, expected))


def test_texts_are_refused_by_name_under_xla():
    inputs = keras.Input([2], dtype='string')
    model = keras.Model(inputs, layers.Embedding(3, 2)(layers.Hashing(num_bins=3, name='buckets')(inputs)))
    pipe = lingpipe.GPipeLayer.from_keras(model, num_partitions=2, num_micro_batches=1, jit_compile=True)
    with pytest.raises(ValueError, match=r"'buckets.*' looks up a table or reads texts.*Set jit_compile=False"):
        pipe(tf.constant([['a', 'b']]))
