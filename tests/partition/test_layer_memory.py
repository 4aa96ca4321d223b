import keras
import pytest
import tensorflow as tf

from lingpipe import schedules
from lingpipe.layers import keras_params
from lingpipe.partition import layer_memory

layers = keras.layers


def measure(constructor, spec, **arguments):
    return layer_memory.layer_memories([keras_params.KerasParams(constructor, **arguments)], spec)[0]


def test_a_dense_layer_with_relu_keeps_only_inputs_and_outputs():
    given, inputs, weights = 4 * 3 * 7, 4 * 3 * 5, 4 * (5 * 7 + 7)
    memory = measure(layers.Dense, tf.TensorSpec([3, 5]), units=7, activation='relu')
    assert memory[:7] == (weights, 0, inputs, 0, given, inputs, given)
    # relu's gradient is in a place of its own, and all others
    assert memory.backward == given + given + inputs + weights
    assert memory.recomputed >= memory.backward


@pytest.mark.parametrize('layer, shape, dtype, sizes', [
    (keras_params.KerasParams(layers.Dense, units=7, activation='softplus'), [3, 5], 'float32', {'internals': 4 * 3 * 7}),
    (keras_params.KerasParams(layers.Dropout, rate=0.5), [3, 5], 'float32', {'internals': 3 * 5}),  # its mask
    (keras_params.KerasParams(layers.BatchNormalization), [3, 5], 'float32', {'weights': 4 * 2 * 5, 'state': 4 * 2 * 5}),
    (keras_params.KerasParams(layers.Embedding, input_dim=11, output_dim=4), [3, 5], 'int32',
     {'weights': 4 * 11 * 4, 'inputs': 4 * 3 * 5, 'outputs': 4 * 3 * 5 * 4}),
    (keras_params.KerasParams(layers.Activation, activation='relu'), [3, 5], 'float32', {'read_inputs': 0}),
    (keras_params.KerasParams(layers.MaxPooling1D), [3, 6, 5], 'float32', {'read_inputs': 4 * 3 * 6 * 5}),
    (keras_params.KerasParams(layers.Reshape, target_shape=(2, 3)), [3, 6], 'float32', {'internals': 0}),
    (keras_params.KerasParams(layers.Dense, units=7, dtype='mixed_bfloat16'), [3, 5], 'float32',
     {'weights': 4 * (5 * 7 + 7), 'outputs': 2 * 3 * 7})])
def test_each_layer_keeps_what_its_backward_pass_reads(layer, shape, dtype, sizes):
    memory, = layer_memory.layer_memories([layer], tf.TensorSpec(shape, dtype))
    assert {name: getattr(memory, name) for name in sizes} == sizes


class Pair(layers.Layer):
    """Hands on its second input unchanged, as AmoebaNet's cells do, beside the sum of the square roots of both."""

    def call(self, inputs):
        return inputs[1], tf.sqrt(tf.nn.relu(inputs[0])) + tf.nn.relu(inputs[1])


def test_repeated_inputs_and_reads_of_layers_count_once():
    size = 4 * 8
    stack = [keras_params.KerasParams(Pair, name=name) for name in 'abc']
    first, second, third = layer_memory.layer_memories(stack, (tf.TensorSpec([8]), tf.TensorSpec([8])))
    assert (first.inputs, first.repeated_inputs, first.repeated_reads) == (2 * size, 0, 0)
    assert second.inputs == third.inputs == 2 * size
    assert second.repeated_inputs == third.repeated_inputs == size
    assert second.repeated_reads == third.repeated_reads == size  # relu of what both have read
    assert second.read_inputs == 2 * size


@pytest.mark.parametrize('name, num_devices, num_micro_batches, num_virtual_stages, live', [
    ('gpipe', 3, 5, 1, [5, 5, 5]),
    ('1f1b', 4, 8, 1, [4, 3, 2, 1]),
    ('1f1b', 4, 2, 1, [2, 2, 2, 1]),
    ('zb_h1', 4, 8, 1, [4, 4, 4, 4]),
    ('interleaved_1f1b', 2, 4, 2, [4, 3, 2, 1])])
def test_micro_batches_that_a_schedule_keeps(name, num_devices, num_micro_batches, num_virtual_stages, live):
    schedule = schedules.make_schedule(name, num_devices, num_micro_batches, num_virtual_stages)
    assert layer_memory.live_micro_batches(schedule) == live


def test_a_micro_batch_is_kept_to_its_w_or_to_its_whole_b():
    schedule = schedules.from_lists([['F0', 'I0', 'F1', 'B1', 'F2', 'B2', 'W0']])
    assert layer_memory.live_micro_batches(schedule) == [2]
    assert layer_memory.live_micro_batches(schedules.from_lists([['F0', 'B0', 'F1', 'B1']])) == [1]


SIZE = 4 * 10


def read_later(x):
    first = tf.exp(x)
    return tf.tanh(first) * first


@pytest.mark.parametrize('function, num_bytes', [
    pytest.param(lambda x: tf.tanh(tf.exp(tf.sqrt(x))), SIZE, id='a chain works in place'),
    pytest.param(lambda x: tf.nn.softplus(tf.cumsum(tf.cumsum(x))), 2 * SIZE + 4, id='others take two, and their axis'),
    pytest.param(read_later, 2 * SIZE, id='what is read later is not overwritten'),
    pytest.param(lambda x: tf.identity(tf.stop_gradient(tf.exp(x))), SIZE, id='views take nothing'),
    pytest.param(lambda x: (tf.exp(x), tf.exp(x), tf.tanh(x)), 2 * SIZE, id='equal operations run once'),
    pytest.param(lambda x: tf.add_n([tf.exp(x), tf.tanh(x), tf.sqrt(x)]), 3 * SIZE, id='branches go side by side'),
    pytest.param(lambda x: [tf.reverse(tf.exp(x), [0]), tf.exp(x)], 2 * SIZE + 4, id='results stay')])
def test_the_fullest_moment_of_a_function_besides_its_argument(function, num_bytes):
    graph = tf.function(function, autograph=False).get_concrete_function(tf.TensorSpec([10])).graph
    operations = [operation for operation in graph.get_operations() if operation is not graph.inputs[0].op]
    assert layer_memory.fullest_moment(operations, [tensor.op.inputs[0] for tensor in graph.outputs]) == num_bytes
