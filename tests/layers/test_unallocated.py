import random

import keras
import numpy as np
import tensorflow as tf

from lingpipe.layers import base_layer


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


def test_random_numbers_continue_as_if_nothing_had_been_built():
    random.seed(1)
    expected = [random.random() for _ in range(2)]
    random.seed(1)
    numbers = [random.random()]
    with base_layer.unallocated_variables():
        keras.layers.Dense(3).build((None, 2))
        keras.layers.Dropout(0.5)
    assert [*numbers, random.random()] == expected


def test_variables_inside_can_stand_in_a_traced_function():
    with base_layer.unallocated_variables():
        layer = keras.layers.Dense(3, use_bias=False)
        layer.build((None, 2))

    @tf.function
    def call(x, kernel):
        with keras.StatelessScope(state_mapping=[(layer.kernel, kernel)], initialize_variables=False):
            return layer(x)

    np.testing.assert_array_equal(call(tf.ones([1, 2]), tf.ones([2, 3])), [[2, 2, 2]])
