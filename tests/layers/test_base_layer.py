import threading

import keras
import numpy as np
import tensorflow as tf

from lingpipe.layers import base_layer
from lingpipe.pipeline import gpipe_layer


def test_the_innermost_step_counts_and_ends_with_its_block():
    assert base_layer.current_training_step() is None
    with base_layer.training_step(3):
        with base_layer.training_step(5):
            assert base_layer.current_training_step() == 5
        assert base_layer.current_training_step() == 3
        with base_layer.training_step(None):
            assert base_layer.current_training_step() is None
    assert base_layer.current_training_step() is None


def test_threads_do_not_see_the_steps_of_each_other():
    seen = []
    with base_layer.training_step(3):
        thread = threading.Thread(target=lambda: seen.append(base_layer.current_training_step()))
        thread.start()
        thread.join()
    assert seen == [None]


def test_giant_layers_are_described_without_memory():
    with base_layer.unallocated_variables():
        layer = keras.layers.Dense(10**7)
        layer.build((None, 10**7))
    assert layer.count_params() == 10**14 + 10**7
    assert [tuple(variable.shape) for variable in layer.weights] == [(10**7, 10**7), (10**7,)]


def test_layers_built_afterwards_are_allocated_as_ever():
    def build():
        keras.utils.set_random_seed(0)
        layer = keras.layers.Dense(3)
        layer.build((None, 2))
        return layer.get_weights()

    expected = build()
    with base_layer.unallocated_variables():
        keras.layers.Dense(10**7).build((None, 10**7))
    np.testing.assert_array_equal(build()[0], expected[0])
    with keras.StatelessScope():
        pass  # when such a scope closes, Keras allocates all that waits for it


def test_variables_inside_can_stand_in_a_traced_function():
    with base_layer.unallocated_variables():
        layer = keras.layers.Dense(3, use_bias=False)
        layer.build((None, 2))

    @tf.function
    def call(x, kernel):
        with keras.StatelessScope(state_mapping=[(layer.kernel, kernel)], initialize_variables=False):
            return layer(x)

    np.testing.assert_array_equal(call(tf.ones([1, 2]), tf.ones([2, 3])), [[2, 2, 2]])


class Threes(keras.layers.Layer):
    """A layer that assigns its weight while it is built."""

    def build(self, input_shape):
        self.scale = self.add_weight(shape=input_shape[1:], initializer='zeros')
        self.scale.assign(3.0 * tf.ones_like(self.scale))

    def call(self, inputs):
        return inputs * self.scale


def test_values_that_build_assigns_are_initial_values():
    pipe = gpipe_layer.GPipeLayer(layers=[Threes(), Threes()], num_partitions=2)
    np.testing.assert_array_equal(pipe(tf.ones([2, 4])), tf.fill([2, 4], 9.0))
