import pytest
import tensorflow as tf

from lingpipe.devices import device_kinds, variable_placement


@pytest.mark.parametrize('device, expected', [
    ('TPU:1', True), ('/job:worker/task:1/device:TPU:0', True), ('/device:CPU:0', False), ('GPU:3', False),
    ('/device:TPU_REPLICATED_CORE:1', False)])
def test_tpus_alone_must_compile(device, expected):
    assert device_kinds.must_compile(device) is expected


def test_devices_can_pretend_to_be_tpus_for_a_while():
    with device_kinds.pretend_tpus(['CPU:1']):
        assert device_kinds.must_compile('/job:localhost/replica:0/task:0/device:CPU:1')
        assert not device_kinds.must_compile('CPU:2')
    assert not device_kinds.must_compile('CPU:1')


@pytest.mark.parametrize('device, expected', [
    ('/job:worker/replica:0/task:3/device:TPU:5', '/job:worker/replica:0/task:3/device:CPU:0'),
    ('TPU:2', '/device:CPU:0'),
    ('GPU:1', 'GPU:1'), ('CPU:3', 'CPU:3')])
def test_single_operations_of_a_tpu_go_to_its_own_host(device, expected):
    assert device_kinds.for_single_operations(device) == expected


def operations_of_a_call(function, *arguments):
    def traced():
        return device_kinds.call('CPU:1', function, *arguments)

    graph = tf.function(traced, autograph=False).get_concrete_function().graph
    return [operation for operation in graph.get_operations() if operation.device.endswith('CPU:1')]


def test_a_few_operations_become_one_compiled_call_on_a_tpu_only():
    assert {operation.type for operation in operations_of_a_call(tf.zeros, [2])} == {'Const'}
    with device_kinds.pretend_tpus(['CPU:1']):
        call, = operations_of_a_call(tf.zeros, [2])
    assert call.get_attr('_XlaMustCompile')


def test_the_host_computes_initial_values_for_a_tpu():
    made_on = []

    def initial_value():
        value = tf.ones([2])
        made_on.append(value.device)
        return value

    with device_kinds.pretend_tpus(['CPU:3']), variable_placement.creating_on('CPU:3'):
        variable = tf.Variable(initial_value)
    assert made_on[0].endswith('CPU:0') and variable.device.endswith('CPU:3')
    assert variable.numpy().tolist() == [1.0, 1.0]
