import keras
import pytest
import tensorflow as tf

from lingpipe.layers.keras_params import KerasParams
from tests.pipeline import small_stacks
from tests.plain_stack import make_pipe


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
