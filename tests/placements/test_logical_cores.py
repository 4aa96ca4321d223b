"""The training step on a `TPUStrategy` over a system that does not exist: traced, and run after taking it off its
cores."""

import collections

import keras
import numpy as np
import pytest
import tensorflow as tf

from lingpipe.devices import variable_placement
from lingpipe.placements import tpu_replicas
from lingpipe.training import train_program
from tests import needs, virtual_tpu
from tests.closeness import assert_close
from tests.off_its_cores import OffItsCores
from tests.tiny_tasks import TASKS

ENTRANCE = {'TPUReplicateMetadata', 'NoOp', 'Identity'}  # what TensorFlow itself adds, for arguments


def make_program(kind, num_stages, mesh=(2, 2, 1, 2), dropout_rate=0.0, **fields):
    """Return the cores, a program on them and a batch."""
    cores = virtual_tpu.make_cores(num_stages, mesh)
    keras.utils.set_random_seed(0)
    p, batch = TASKS[kind](dropout_rate)
    p.body.Set(num_partitions=num_stages, devices=cores.devices, **fields)
    return cores, virtual_tpu.core_program(p, cores, batch[0]), batch


def trace(program, batch):
    def step(*batch):
        with tf.device('CPU:0'):  # as the loop around the steps does
            return program._step(batch)

    return tf.function(step, autograph=False).get_concrete_function(*batch)


def inside(graph):
    """Operations of the program of the cores."""
    return [operation for operation in graph.get_operations() if '_tpu_replicate' in operation.node_def.attr]


def check_every_operation_of_the_step_carries_a_core(cores, program, graph):
    devices = collections.Counter(operation.device for operation in inside(graph) if operation.type not in ENTRANCE)
    assert set(devices) == set(cores.devices) and min(devices.values()) > 100
    without = [operation for operation in inside(graph) if operation.device not in cores.devices]
    assert all(operation.type in ENTRANCE for operation in without)
    assert all(operation.name.startswith('replicated_input') for operation in without if operation.type == 'Identity')


def check_no_call_hides_operations_without_a_core(cores, program, graph):
    assert not [operation for operation in inside(graph) if 'Call' in operation.type]


def check_shapes_are_static(cores, program, graph):
    assert all(tensor.shape.is_fully_defined() for operation in inside(graph) for tensor in operation.outputs
               if tensor.dtype != tf.resource and operation.type != 'BroadcastGradientArgs')  # which is of constants


def check_replicas_and_cores_are_those_of_the_assignment(cores, program, graph):
    metadata, = (operation for operation in graph.get_operations() if operation.type == 'TPUReplicateMetadata')
    assert metadata.get_attr('num_replicas') == cores.count == 8 // len(cores.devices)
    assert metadata.get_attr('num_cores_per_replica') == len(cores.devices)
    assert len(metadata.get_attr('device_assignment')) == 8 * 4
    assert not metadata.get_attr('use_spmd_for_xla_partitioning')


def check_weights_slots_and_averages_are_on_their_stages_core(cores, program, graph):
    body = program._task.body
    core_of = {id(variable): stage.device for stage in reversed(body.stages) for layer in stage.layers
               for variable in layer.variables if hasattr(variable.value, 'logical_core')}
    assignment = cores.strategy.extended._device_assignment

    def check(variable, core):
        assert variable_placement.device_of(variable) == core
        copies = (variable if hasattr(variable, 'values') else variable.value).values
        index = cores.devices.index(core)
        assert [copy.device[copy.device.index('/task'):] for copy in copies] == [
            assignment.tpu_device(replica, index) for replica in range(cores.count)]

    for (name, variable), average in zip(program.named_variables.items(), program.average.averages.values()):
        assert id(variable) in core_of, name
        check(variable, core_of[id(variable)])
        check(average, core_of[id(variable)])
    slots = [slot for slot in program.optimizer.variables if len(slot.shape)]
    assert len(slots) == len(body.trainable_variables)
    for slot, variable in zip(slots, body.trainable_variables):
        check(slot, core_of[id(variable)])


def check_all_gradients_are_summed_over_replicas_on_their_core(cores, program, graph):
    sums = collections.Counter((operation.device, tuple(operation.outputs[0].shape))
                               for operation in inside(graph) if operation.type == 'CrossReplicaSum')
    wanted = collections.Counter((variable.value.logical_core, tuple(variable.shape))
                                 for variable in program._task.body.trainable_variables)
    assert all(sums[key] >= count for key, count in wanted.items())
    last = cores.devices[-1]
    assert sums[last, ()] >= 2  # at least the loss and its weight


def check_variables_change_on_their_core_and_copies_are_not_averaged_again(cores, program, graph):
    assigned = [operation for operation in inside(graph) if operation.type.startswith('Assign')]
    for operation in assigned:
        replicated = operation.inputs[0].op
        assert replicated.type == 'TPUReplicatedInput' and operation.device
    values = {tensor.op.type for operation in assigned for tensor in list(operation.inputs)[1:]}
    assert 'CrossReplicaSum' not in values


CHECKS = [
    check_every_operation_of_the_step_carries_a_core, check_no_call_hides_operations_without_a_core,
    check_shapes_are_static,
    check_replicas_and_cores_are_those_of_the_assignment, check_weights_slots_and_averages_are_on_their_stages_core,
    check_all_gradients_are_summed_over_replicas_on_their_core,
    check_variables_change_on_their_core_and_copies_are_not_averaged_again]


@pytest.fixture(scope='module')
def traced_transformer():
    cores, program, batch = make_program('transformer', 2, dropout_rate=0.1)
    return cores, program, trace(program, batch).graph


@pytest.mark.parametrize('check', CHECKS)
def test_a_step_of_a_transformer_on_two_cores(check, traced_transformer):
    check(*traced_transformer)


@pytest.mark.slow
def test_a_step_of_amoebanet_on_four_cores():
    cores, program, batch = make_program('amoebanet', 4, num_micro_batches=1, dropout_rate=0.1)
    graph = trace(program, batch).graph
    for check in CHECKS:
        check(cores, program, graph)


def values_after(program, step, batch, num_steps):
    numbers = [step(*batch) for _ in range(num_steps)][-1]
    variables = [*program.named_variables.values(), *program.optimizer.variables, *program.average.averages.values()]
    return [np.asarray(numbers), *(
        getattr(variable, 'value', variable).values[0].numpy()
        if hasattr(getattr(variable, 'value', variable), 'values')
        else variable.numpy() for variable in variables)]


def values_on_cpu(num_steps):
    keras.utils.set_random_seed(0)
    p, batch = TASKS['convolution']()
    task = p.Instantiate()
    task.body.build_from_specs(tf.TensorSpec(batch[0].shape, batch[0].dtype))
    program = train_program.TrainProgram(task, p.train)
    result = program.run(iter(tf.data.Dataset.from_tensors(batch).repeat()), num_steps)
    numbers = {'gradient_norm': result.gradient_norm, **{name: values[-1] for name, values in result.metrics.items()}}
    variables = [*program.named_variables.values(), *program.optimizer.variables, *program.average.averages.values()]
    return [np.asarray(tf.nest.flatten(numbers)), *(variable.numpy() for variable in variables)]


@pytest.fixture(scope='module')
def traced_convolution():
    _, program, batch = make_program('convolution', 2, mesh=(1, 1, 1, 2))
    return program, batch, trace(program, batch)


@needs.xla_on_cpus
def test_the_program_of_a_replica_equals_the_pipeline_on_cpu(traced_convolution):
    program, batch, traced = traced_convolution
    assert_close(values_after(program, OffItsCores(traced), batch, 2), values_on_cpu(2))


@needs.xla_on_cpus
def test_a_step_that_is_not_finite_changes_nothing(traced_convolution):
    program, batch, traced = traced_convolution
    step, poisoned = OffItsCores(traced), (batch[0] * float('nan'), *batch[1:])
    before = [variable.numpy() for variable in map(variable_placement.native, program._changing_variables())]
    numbers = tf.nest.pack_sequence_as(traced.structured_outputs, step(*poisoned))
    assert not np.isfinite(numbers['gradient_norm'])
    for variable, value in zip(map(variable_placement.native, program._changing_variables()), before):
        np.testing.assert_array_equal(variable.numpy(), value)


def test_the_host_stops_where_a_step_is_not_finite(traced_convolution):
    graph = traced_convolution[-1].graph
    check, = (operation for operation in graph.get_operations() if operation.type == 'Assert')
    counting = [operation for operation in graph.get_operations()
                if operation.type.startswith('Assign') and operation.device.endswith('CPU:0')]
    assert len(counting) == 2 and all(check in _ancestors(operation) for operation in counting)
    assert check.inputs[0].op.type == 'LogicalAnd' and train_program.NON_FINITE in str(check.inputs[1].op.node_def)


def _ancestors(operation):
    found, pending = set(), [operation]
    while pending:
        found.add(pending[-1])
        last = pending.pop()
        pending += [
            other for other in [*last.control_inputs, *(tensor.op for tensor in last.inputs)] if other not in found]
    return found


def test_every_host_takes_its_replicas_rows():
    class Context:
        num_input_pipelines, num_replicas_in_sync, input_pipeline_id = 2, 4, 1

    def batches(share):
        return share.of(tf.data.Dataset.range(16), 8).batch(4, drop_remainder=True).map(lambda rows: (rows, 10 * rows))

    rows = tpu_replicas.rows_of_host(batches, Context)
    assert [one.numpy().tolist() for one, _ in rows] == [[4, 5], [6, 7], [12, 13], [14, 15]]
    assert [spec.shape for spec in rows.element_spec] == [[2], [2]]
