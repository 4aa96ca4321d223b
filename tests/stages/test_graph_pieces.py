import keras
import numpy as np
import pytest
import tensorflow as tf

from lingpipe.layers.keras_params import KerasParams
from tests.pipeline import small_stacks
from tests.plain_stack import make_pipe


class Positive(keras.layers.Layer):
    """Refuses what is not positive, by an operation that nothing waits for."""

    def call(self, inputs):
        tf.debugging.assert_positive(inputs, message='not positive')
        return inputs + 1.0


ONES = np.ones([4, 3], np.float32)


@pytest.fixture(name='pipe')
def pipe_fixture():
    return make_pipe([KerasParams(Positive), small_stacks.dense(3)], num_partitions=1, num_micro_batches=2)


def test_an_assertion_inside_stops_the_program(pipe):
    pipe.value_and_grad(small_stacks.squared_error, ONES, ONES)
    for run in (pipe, lambda x: pipe.value_and_grad(small_stacks.squared_error, x, ONES)):
        with pytest.raises(tf.errors.InvalidArgumentError, match='not positive'):
            run(-ONES)


def test_a_piece_is_called_by_a_stateless_operation_and_never_inlined(pipe):
    pipe.build(ONES.shape)
    step = tf.function(lambda: pipe.value_and_grad(small_stacks.squared_error, ONES, ONES).gradients, autograph=False)
    graph = step.get_concrete_function().graph
    calls = [operation for operation in graph.get_operations() if 'PartitionedCall' in operation.type]
    called = {operation.get_attr('f').name for operation in calls}
    assert {operation.type for operation in calls} == {'PartitionedCall'} and any('stage_0_forward' in name for name in called)
    assert all(function.attr['_noinline'].b for function in graph.as_graph_def().library.function
               if function.signature.name in called)


def layers():
    return [KerasParams(keras.layers.Conv2D, filters=4, kernel_size=3, padding='same', name='convolution'),
            KerasParams(keras.layers.MaxPooling2D, pool_size=3, strides=1, padding='same', name='pool'),
            KerasParams(keras.layers.BatchNormalization, name='norm'),
            KerasParams(keras.layers.Flatten, name='flat'), small_stacks.dense(5, name='dense')]


def operation_types(function_def):
    return {node.op for node in function_def.node_def}


@pytest.mark.parametrize('schedule', ['gpipe', '1f1b', 'zb_h1'])
def test_the_pass_with_the_gradient_of_a_max_pooling_repeats_the_pooling(schedule):
    images, labels = small_stacks.images_and_labels()
    pipe = make_pipe(layers(), num_partitions=1, num_micro_batches=2, schedule=schedule, recompute='none')
    pipe.build(images.shape)

    @tf.function(autograph=False)
    def gradients():
        return pipe.value_and_grad(small_stacks.cross_entropy, images, labels).gradients

    library = gradients.get_concrete_function().graph.as_graph_def().library
    types = [operation_types(function) for function in library.function]
    assert [found for found in types if 'MaxPoolGrad' in found]
    assert all('MaxPool' in found for found in types if 'MaxPoolGrad' in found)
