"""What layers read and assign inside a pipeline is what they read and assign in plain Keras, wherever the model is
cut."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from lingpipe.models import pipeline_model
from lingpipe.pipeline import gpipe_layer
from tests.plain_stack import mean_square, normal

layers = keras.layers
from_keras = gpipe_layer.GPipeLayer.from_keras


def fitted(make, x, y, steps=3, rate=0.0, **fields):
    """Train a model, through a pipeline where there are fields of one, and return it."""
    keras.utils.set_random_seed(0)
    source = model = make()
    if fields:
        model = pipeline_model.PipelineModel(from_keras(source, **fields))
    model.compile(keras.optimizers.SGD(rate), 'mse')
    model.fit(x, y, batch_size=len(y), epochs=steps, shuffle=False, verbose=0)
    return source


@pytest.mark.parametrize('num_channels', [3, 1])  # of one channel, Keras's moments under a mask are scalars
def test_statistics_of_a_norm_count_what_its_mask_leaves(num_channels, assert_close):
    tokens = keras.Input([6], dtype='int32')
    norm = layers.BatchNormalization(momentum=0.0)
    hidden = norm(layers.Embedding(9, num_channels, mask_zero=True)(tokens))
    hidden = layers.BatchNormalization()(layers.Dense(2, activation='relu')(keras.ops.copy(hidden)))
    x = np.array([[1, 0, 0, 0, 0, 0], [2, 3, 4, 5, 6, 7]])
    model = keras.Model(tokens, layers.Dense(1)(hidden))
    table = model.layers[1].embeddings.numpy()
    pipe = from_keras(model, num_partitions=2, num_micro_batches=2)
    pipe.value_and_grad(mean_square, x, np.zeros([2, 6, 1], 'float32'))
    assert_close(norm.moving_mean.numpy(), table[1:8].mean(0))
    assert [each for stage in pipe.stages for each in stage.repeated_or_masked_norms] == [norm]


@pytest.mark.parametrize('read', [
    lambda hidden, table: keras.ops.einsum('btd,vd->btv', hidden, table.embeddings),
    lambda hidden, table: layers.Lambda(lambda h: keras.ops.matmul(h, keras.ops.transpose(table.embeddings)))(hidden),
], ids=['operation', 'lambda'])
def test_weight_read_by_reference_is_cast_as_the_policy_says(read, assert_close):
    keras.config.set_dtype_policy('mixed_bfloat16')
    try:
        tokens, table = keras.Input([5], dtype='int32'), layers.Embedding(11, 6)
        model = keras.Model(tokens, read(layers.Dense(6)(table(tokens)), table))
    finally:
        keras.config.set_dtype_policy('float32')
    x = np.arange(20).reshape(4, 5) % 11
    wanted = model(x)
    outputs = from_keras(model, num_partitions=2, num_micro_batches=2, partition_by=[1, 3])(x)
    assert outputs.dtype == wanted.dtype == tf.bfloat16
    assert_close(tf.cast(outputs, tf.float32), tf.cast(wanted, tf.float32), 1e-2)


class Noise(layers.Layer):
    def call(self, inputs, training=False):
        return inputs + keras.random.normal(keras.ops.shape(inputs))


def test_unseeded_random_numbers_vary_by_step_but_not_by_cut():
    stack = [Noise(), Noise(), layers.Dense(3, use_bias=False, kernel_initializer='identity')]
    x, drawn = np.zeros([8, 3], 'float32'), []
    for partitions in (1, 3):
        pipe = from_keras(
            keras.Sequential([keras.Input([3]), *stack]), num_partitions=partitions, num_micro_batches=2, random_seed=3)
        drawn.append([pipe.value_and_grad(mean_square, x, x, step=step, return_outputs=True).outputs.numpy()
                      for step in (1, 2, 1)])
        assert len({pipe(x).numpy()[row, 0] for row in (0, 4) for _ in range(2)}) == 4
    (one, two, again), (other, *_) = drawn
    np.testing.assert_array_equal(one, again)
    np.testing.assert_array_equal(one, other)
    assert not np.isclose(one, two).any() and not np.isclose(one[:4], one[4:]).any()
    assert np.isfinite(keras.random.normal([]))


class Counter(layers.Layer):
    def build(self, shape):
        self.count = self.add_weight(shape=(), initializer='ones', trainable=False)

    def call(self, inputs):
        self.count.assign(self.count * 2.0 + keras.ops.mean(inputs))
        return inputs + self.count


def test_state_that_two_partitions_share_is_refused():
    inputs, counter = keras.Input([4]), Counter(name='counter')
    model = keras.Model(inputs, counter(layers.Dense(4)(counter(inputs))))
    pipe = from_keras(model, num_partitions=2, num_micro_batches=2, partition_by=[2, 3])
    with pytest.raises(ValueError, match=r"change \['counter/.*Cut the model so that one partition has them"):
        pipe.value_and_grad(mean_square, normal(4, 4), normal(4, 4))


class Looping(layers.Layer):
    def build(self, shape):
        self.count = self.add_weight(shape=(), initializer='zeros', trainable=False, name='count')

    def call(self, inputs):
        return tf.while_loop(lambda index, x: index < 2, lambda index, x: (
            index + 1, x + self.count.assign(self.count + 1.0)),
                             [0, inputs])[1]


def test_assignment_inside_a_loop_is_refused_by_name():
    pipe = from_keras(keras.Sequential([keras.Input([4]), layers.Dense(4), Looping(name='looping')]), num_partitions=1)
    with pytest.raises(ValueError, match="A layer assigns '.*looping/count' inside a tf.while_loop.*Assign it after "
                                         "the loop"):
        pipe.value_and_grad(mean_square, normal(2, 4), normal(2, 4))


class Recomputing(layers.Layer):
    def build(self, input_shape):
        self.kernel = self.add_weight(shape=(input_shape[-1], 2), name='kernel')

    def call(self, inputs):
        return tf.recompute_grad(lambda x: tf.tanh(x @ self.kernel))(inputs)


def test_a_weight_hidden_by_a_custom_gradient_is_refused_by_name():
    x = keras.Input([4])
    with pytest.raises(ValueError, match=r"recompute_grad.*reads \['recomputing/kernel'\].*Give it the weight as an "
                                         r"argument"):
        fitted(lambda: keras.Model(x, layers.Dense(1)(Recomputing()(x))), normal(4, 4), normal(4, 1), num_partitions=2)
