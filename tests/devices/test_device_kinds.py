import logging

import pytest
import tensorflow as tf

from lingpipe.devices import device_kinds, variable_placement
from tests import virtual_tpu


@pytest.mark.parametrize('device, expected', [
    ('TPU:1', True), ('/job:worker/task:1/device:TPU:0', True), ('/device:CPU:0', False), ('GPU:3', False),
    ('/device:TPU_REPLICATED_CORE:1', False)])
def test_tpus_alone_must_compile(device, expected):
    assert device_kinds.must_compile(device) is expected


def operations_of_a_call(function, *arguments):
    def traced():
        return device_kinds.call('CPU:1', function, *arguments)

    graph = tf.function(traced, autograph=False).get_concrete_function().graph
    return [operation for operation in graph.get_operations() if operation.device.endswith('CPU:1')]


def test_a_few_operations_become_one_compiled_call_on_a_tpu_only():
    assert {operation.type for operation in operations_of_a_call(tf.zeros, [2])} == {'Const'}
    with virtual_tpu.pretend_tpus(['CPU:1']):
        call, = operations_of_a_call(tf.zeros, [2])
    assert call.get_attr('_XlaMustCompile')


def test_the_host_computes_initial_values_for_a_tpu():
    made_on = []

    def initial_value():
        value = tf.ones([2])
        made_on.append(value.device)
        return value

    with virtual_tpu.pretend_tpus(['CPU:3']), variable_placement.creating_on('CPU:3'):
        variable = tf.Variable(initial_value)
    assert made_on[0].endswith('CPU:0') and variable.device.endswith('CPU:3')
    assert variable.numpy().tolist() == [1.0, 1.0]


@pytest.fixture
def machine(monkeypatch):
    """Return a function that makes the machine have the given devices, such as {'CPU': 1, 'GPU': 2}."""

    def set_devices(**counts):
        def list_logical_devices(kind=None):
            return [tf.config.LogicalDevice(f'/device:{name}:{index}', name) for name, count in counts.items()
                    for index in range(count) if kind in (None, name)]

        monkeypatch.setattr(tf.config, 'list_logical_devices', list_logical_devices)

    return set_devices


def test_virtual_devices_work_on_one_thread_each():
    """The tests' own configuration calls `use_virtual_devices(8)`."""
    assert len(tf.config.list_logical_devices('CPU')) == 8
    assert tf.config.threading.get_intra_op_parallelism_threads() == 1
    assert tf.config.threading.get_inter_op_parallelism_threads() == 8


def test_virtual_devices_that_come_too_late_change_nothing_and_say_so(caplog):
    tf.zeros([])
    with caplog.at_level(logging.WARNING, 'absl'):
        device_kinds.use_virtual_devices(3)
    assert len(tf.config.list_logical_devices('CPU')) == 8
    assert r'use_virtual_devices(3) came too late' in caplog.text and 'keeps its 8' in caplog.text


@pytest.mark.parametrize('counts, kind, expected', [
    ({'CPU': 4, 'GPU': 2}, None, ['GPU:0', 'GPU:1']),
    ({'CPU': 4, 'GPU': 2, 'TPU': 2}, None, ['TPU:0', 'TPU:1']),
    ({'CPU': 4, 'GPU': 2}, 'CPU', ['CPU:0', 'CPU:1'])])
def test_accelerators_come_before_the_cpu_unless_a_kind_is_asked_for(machine, counts, kind, expected):
    machine(**counts)
    assert device_kinds.stage_devices(2, kind) == [f'/device:{name}' for name in expected]


def test_stages_share_too_few_devices_with_a_warning(machine, caplog):
    machine(CPU=2)
    with caplog.at_level(logging.WARNING, 'absl'):
        assert device_kinds.stage_devices(5) == [f'/device:CPU:{index}' for index in (0, 1, 0, 1, 0)]
    assert 'there are 5 stages' in caplog.text and 'call lingpipe.use_virtual_devices(5) at' in caplog.text


def test_a_kind_that_the_machine_lacks_is_refused():
    with pytest.raises(ValueError, match=r"kind 'TPU' was found.*Choose one of \['CPU'\]"):
        device_kinds.stage_devices(2, kind='TPU')
