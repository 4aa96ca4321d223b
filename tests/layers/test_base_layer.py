import threading

import keras
import numpy as np
import pytest
import tensorflow as tf

from lingpipe.layers import base_layer, keras_params
from lingpipe.models import pipeline_model
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


def drawn(shape, dtype=None):
    return np.random.normal(size=shape).astype(np.float32)


class Halves(keras.layers.Layer):
    """A layer that assigns a weight of its constructor while it is built, to the negative of one that it has drawn."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.scale = self.add_weight(shape=[4], initializer='ones')

    def build(self, input_shape):
        self.drawn = self.add_weight(shape=[4], initializer=drawn)
        self.scale.assign(0.5 - self.drawn)

    def call(self, inputs):
        return inputs * (self.scale + self.drawn)


def first_called(pipe):
    return pipe(tf.ones([2, 4]))


def first_trained(pipe):
    model = pipeline_model.PipelineModel(pipe)
    model.compile(keras.optimizers.SGD(0.0), 'mse')
    model.fit(np.ones([2, 4]), np.ones([2, 4]), verbose=0)
    return pipe(tf.ones([2, 4]))


@pytest.mark.parametrize('first', [first_called, first_trained])
def test_values_that_build_assigns_are_initial_values(first):
    pipe = gpipe_layer.GPipeLayer(layers=[Threes(), Halves(), Threes()], num_partitions=2)
    np.testing.assert_allclose(first(pipe), tf.fill([2, 4], 4.5), rtol=1e-6)
    params = gpipe_layer.GPipeLayer.Params().Set(
        name='pipe', num_partitions=2, layers=[keras_params.KerasParams(each) for each in (Threes, Halves)])
    np.testing.assert_allclose(first(params.Instantiate()), tf.fill([2, 4], 1.5), rtol=1e-6)


def test_two_pipelines_draw_different_weights():
    class OwnDense(keras.layers.Layer):
        def build(self, input_shape):
            self.kernel = self.add_weight(shape=[4, 4])

        def call(self, inputs):
            return inputs @ self.kernel

    pipes = [gpipe_layer.GPipeLayer(layers=[OwnDense(), OwnDense()], num_partitions=2) for _ in range(2)]
    kernels = [kernel for pipe in pipes for kernel in (pipe(tf.ones([2, 4])) is not None and pipe.trainable_variables)]
    assert len({kernel.numpy().tobytes() for kernel in kernels}) == 4


def test_only_layers_of_the_project_are_tied():
    class Necktie(keras.layers.Identity):
        tie = True

    assert gpipe_layer.GPipeLayer(layers=[Necktie(), keras.layers.Dense(2)], num_partitions=2)(tf.ones([2, 4])).shape == (2, 2)
