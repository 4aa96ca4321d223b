import keras
import numpy as np
import pytest
import tensorflow as tf

from lingpipe import GPipeLayer
from tests.plain_stack import loss_and_gradients


def test_equal_losses_need_no_new_trace():
    x, pipe = np.ones([4, 2], 'float32'), GPipeLayer(layers=[keras.layers.Dense(1)], num_partitions=1)
    for smoothing in (.1, .1, .2):
        pipe.value_and_grad(keras.losses.BinaryCrossentropy(label_smoothing=smoothing), x, x[:, :1])
    assert len(pipe._untracked.losses) == 2


class CallsPython(keras.layers.Layer):
    def call(self, x):
        return tf.ensure_shape(tf.py_function(lambda x: tf.sin(3.0 * x) * x, [x], x.dtype), x.shape)

    def compute_output_spec(self, x):
        return keras.KerasTensor(x.shape, x.dtype)


def test_python_that_tensorflow_differentiates_works_in_one_micro_batch(assert_close):
    model = keras.Sequential([keras.Input([4]), keras.layers.Dense(4), CallsPython(), keras.layers.Dense(1)])
    x, loss = np.random.default_rng(0).normal(size=(8, 4)).astype('float32'), keras.losses.MeanSquaredError()
    _, expected = loss_and_gradients(model, loss, x, x[:, :1])
    one, two = (GPipeLayer.from_keras(model, num_partitions=2, num_micro_batches=count) for count in (1, 2))
    assert_close(one.value_and_grad(loss, x, x[:, :1]).gradients, expected)
    assert_close(two(x), model(x))
    with pytest.raises(ValueError, match='partition 1 calls tf.py_function.* 2 micro-batches. Set num_micro_batches'):
        two.value_and_grad(loss, x, x[:, :1])
