import keras
import numpy as np
import pytest
import tensorflow as tf

from lingpipe.layers.keras_params import KerasParams
from lingpipe.pipeline import gpipe_layer
from tests.pipeline.small_stacks import (
    convolutional_layers,
    cross_entropy,
    dense,
    images_and_labels,
    squared_error,
    vectors,
)
from tests.plain_stack import assert_trains_as_plain_layers, loss_and_gradients, make_pipe

layers = keras.layers


@pytest.mark.parametrize('num_replicas, num_partitions, schedule, recompute', [
    (2, 2, 'gpipe', 'layer'), (4, 1, '1f1b', 'stage'), (2, 3, 'zb_h1', 'none')])
def test_training_equals_the_plain_layers_on_all_micro_batches(num_replicas, num_partitions, schedule, recompute):
    pipe = make_pipe(convolutional_layers(), num_replicas=num_replicas, num_partitions=num_partitions,
                     num_micro_batches=2, schedule=schedule, recompute=recompute, partition_by='params')
    assert_trains_as_plain_layers(pipe, cross_entropy, *images_and_labels(16), 2 * num_replicas)


def noisy_layers():
    return [dense(8, activation='tanh', name='first'), KerasParams(layers.Dropout, rate=0.5, name='drop'),
            dense(8, activation='tanh', activity_regularizer=KerasParams(keras.regularizers.L2, l2=0.1), name='second'),
            dense(3, name='last')]


@pytest.mark.parametrize('num_replicas, num_partitions', [(2, 2), (4, 1)])
def test_replicas_draw_the_random_numbers_of_one_pipeline(num_replicas, num_partitions, assert_close, assert_gradients_close):
    """It has as many micro-batches as all replicas together."""
    x, y = vectors(16)
    one = make_pipe(noisy_layers(), num_micro_batches=2 * num_replicas)
    several = make_pipe(noisy_layers(), num_micro_batches=2, num_replicas=num_replicas, num_partitions=num_partitions)
    for step in (0, 1):
        expected, found = (pipe.value_and_grad(squared_error, x, y, step=step, return_outputs=True)
                           for pipe in (one, several))
        assert_close((found.loss, found.outputs), (expected.loss, expected.outputs))
        assert_gradients_close(found.gradients, expected.gradients)


class AddsUp(layers.Layer):
    """Counts what passes in a state of its own."""

    def __init__(self, aggregation, **kwargs):
        super().__init__(**kwargs)
        self.aggregation = aggregation

    def build(self, input_shape):
        self.total = self.add_weight(
            shape=(), initializer='ones', trainable=False, aggregation=self.aggregation, name='total')

    def call(self, inputs):
        self.total.assign_add(keras.ops.sum(inputs))
        return inputs


@pytest.mark.parametrize('aggregation, total', [('mean', 1 + 14), ('sum', 1 + 28), ('none', 1 + 6)])
def test_replicas_agree_on_a_state_by_its_aggregation(aggregation, total):
    pipe = make_pipe([KerasParams(AddsUp, aggregation=aggregation), dense(1)], num_replicas=2, num_micro_batches=2)
    x = np.arange(8, dtype='float32')[:, np.newaxis]
    pipe.value_and_grad(squared_error, x, x)
    assert float(pipe.stack[0].total) == total


def test_weights_are_spread_over_the_devices_of_their_stage():
    x, y = vectors(16)
    pipe = make_pipe([dense(8, name=f'dense_{index}') for index in range(8)], num_replicas=2, num_partitions=2)
    pipe.build(x.shape)
    devices = [[tf.DeviceSpec.from_string(weight.value.device).device_index for weight in stage.trainable_variables]
               for stage in pipe.stages]
    assert [set(row) for row in devices] == [{0, 2}, {1, 3}]
    num_bytes = [sum(int(np.prod(weight.shape)) for stage in pipe.stages for weight in stage.trainable_variables
                     if tf.DeviceSpec.from_string(weight.value.device).device_index == device) for device in range(4)]
    assert max(num_bytes[0], num_bytes[2]) <= 0.6 * (num_bytes[0] + num_bytes[2])


def calls_of_a_step(**fields):
    """Return the calls of functions in a step of two replicas of two partitions."""
    x, y = vectors(16)
    pipe = make_pipe([dense(3, name=f'dense_{index}') for index in range(4)], num_replicas=2, num_partitions=2,
                     num_micro_batches=2, **fields)
    pipe.build(x.shape)
    step = tf.function(lambda: pipe.value_and_grad(squared_error, x, y).gradients, autograph=False)
    return [operation for operation in step.get_concrete_function().graph.get_operations()
            if operation.type == 'PartitionedCall']


def test_stages_of_all_replicas_compute_on_devices_of_their_own():
    calls = [call for call in calls_of_a_step() if '_backward' in call.get_attr('f').name]
    places = [(operation.get_attr('f').name.split('_backward')[0][-1], operation.device[-1]) for operation in calls]
    assert sorted(places) == [('0', '0')] * 2 + [('0', '2')] * 2 + [('1', '1')] * 2 + [('1', '3')] * 2


def test_gradient_sums_of_a_stage_do_not_wait_for_earlier_stages():
    calls = calls_of_a_step(gradient_sum='add')
    sums = [call for call in calls if '_add_up' in call.get_attr('f').name]
    backward = {stage: {call for call in calls if f'{stage}_backward' in call.get_attr('f').name} for stage in (0, 1)}
    assert {call.device[-1] for call in sums} == set('0123')
    for call in sums:
        assert (_all_before(call) >= backward[1]) and _all_before(call) & backward[0] == (
            backward[0] if call.device[-1] in '02' else set())


def _all_before(operation):
    found, ahead = set(), [operation]
    while ahead:
        operation = ahead.pop()
        new = {tensor.op for tensor in operation.inputs} | set(operation.control_inputs)
        ahead.extend(new - found)
        found |= new
    return found


@pytest.mark.parametrize('gradient_sum', ['add', 'ring', 'two_dimensional'])
def test_gradients_have_the_shapes_of_their_weights_in_every_sum(gradient_sum, assert_close):
    inputs = keras.Input([3, 2])
    _, second = keras.ops.split(inputs, [1], axis=-1)  # TensorFlow does not know its last dimension
    model = keras.Model(inputs, layers.Dense(1)(layers.Flatten()(layers.Dense(3)(second))))
    x, loss = np.random.default_rng(0).normal(size=(8, 3, 2)).astype('float32'), keras.losses.MeanSquaredError()
    _, expected = loss_and_gradients(model, loss, x, x[:, 0, :1])
    pipe = gpipe_layer.GPipeLayer.from_keras(
        model, num_partitions=2, num_micro_batches=2, num_replicas=2, gradient_sum=gradient_sum)
    assert_close(pipe.value_and_grad(loss, x, x[:, 0, :1]).gradients, expected)
