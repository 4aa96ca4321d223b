"""Each stage's weights, gradients and work are on the stage's device, and little goes from one device to another."""


import keras
import numpy as np
import pytest
import tensorflow as tf

from lingpipe.layers.keras_params import KerasParams
from tests.pipeline.small_stacks import cross_entropy, dense
from tests.plain_stack import make_pipe

layers = keras.layers

CONVOLUTIONS_AND_PRODUCTS = ('Conv2D', 'Conv2DBackpropInput', 'Conv2DBackpropFilter', 'MatMul')


def stack():
    return [
        KerasParams(layers.Conv2D, filters=4, kernel_size=3, padding='same', name='convolution'),
        KerasParams(layers.BatchNormalization, name='norm'),
        KerasParams(layers.Conv2D, filters=2, kernel_size=3, padding='same', name='second_convolution'),
        KerasParams(layers.Flatten, name='flatten'),
        dense(13, name='dense'),
        dense(5, name='logits')]


IMAGES, LABELS = np.ones((8, 6, 6, 3), np.float32), np.arange(8) % 5


@pytest.fixture
def pipe():
    pipe = make_pipe(
        stack(), num_partitions=3, num_micro_batches=4, partition_by=[2, 4, 6], devices=['CPU:1', 'CPU:3', 'CPU:6'])
    pipe.build((None, 6, 6, 3))
    return pipe


def device_of(tensor_or_operation):
    return 'CPU:' + tensor_or_operation.device.rsplit('CPU:', 1)[1]


def step_graph(pipe):
    """Return the graph of a training step, and its gradients."""
    found = {}

    @tf.function(autograph=False)
    def step(images, labels):
        found['out'] = pipe.value_and_grad(cross_entropy, images, labels)
        return found['out'].loss

    graph = step.get_concrete_function(tf.TensorSpec(IMAGES.shape), tf.TensorSpec(LABELS.shape, tf.int64)).graph
    return graph, found['out'].gradients


def is_call(operation):
    return 'PartitionedCall' in operation.type


def test_every_variable_lives_on_the_device_of_its_partition(pipe):
    expected = ['CPU:1'] * 2 + ['CPU:3'] * 2 + ['CPU:6'] * 2
    for layer, device in zip(pipe.stack, expected):
        assert {device_of(variable.value) for variable in layer.variables} <= {device}
    assert [part.device for part in pipe.partitions] == ['CPU:1', 'CPU:3', 'CPU:6']
    assert [part.layer_names for part in pipe.partitions] == [
        ['convolution', 'norm'], ['second_convolution', 'flatten'], ['dense', 'logits']]


def test_all_heavy_work_is_called_on_the_device_of_its_stage(pipe):
    graph, _ = step_graph(pipe)
    operations = graph.get_operations()
    assert not [operation for operation in operations if operation.type in CONVOLUTIONS_AND_PRODUCTS]
    # The activations of the last one are at hand; a convolution's backward pass reads inputs alone.
    recomputations = [3, 0, 3]
    for index, device in enumerate(['CPU:1', 'CPU:3', 'CPU:6']):
        calls = [operation for operation in operations if is_call(operation) and f'stage_{index}' in str(
            operation.get_attr('f'))]
        assert len(calls) == 4 + recomputations[index] + 4
        assert {device_of(call) for call in calls} == {device}


def test_work_inside_a_stage_has_no_device_of_its_own(pipe):
    graph, _ = step_graph(pipe)
    bodies = [function for function in graph.as_graph_def().library.function if 'stage_' in function.signature.name]
    heavy = [node for body in bodies for node in body.node_def if node.op in CONVOLUTIONS_AND_PRODUCTS]
    assert {node.op for node in heavy} == set(CONVOLUTIONS_AND_PRODUCTS)
    assert {node.device for body in bodies for node in body.node_def} == {''}


def test_only_boundary_tensors_and_small_numbers_cross_between_devices(pipe):
    graph, _ = step_graph(pipe)
    crossing = {tuple(tensor.shape) for operation in graph.get_operations() for tensor in operation.inputs
                if operation.device and tensor.op.device and operation.device != tensor.op.device}
    boundaries = {(2, 6, 6, 4), (2, 72)}
    numbers = {(), (4,)}  # scalars; seed, step, micro-batch and row
    assert boundaries <= crossing <= boundaries | numbers
