"""Batch norm with statistics of groups of replicas, in one program for all replicas of a TPU system."""

import collections
import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from lingpipe.devices import variable_placement
from lingpipe.layers import batch_normalization, keras_params
from lingpipe.tools import stable_hlo
from lingpipe.training import train_program
from tests import compiled_replicas, needs, virtual_tpu
from tests.off_its_cores import OffItsCores
from tests.tiny_tasks import TASKS

NUM_REPLICAS, GROUP_SIZE, NUM_MICRO_BATCHES, ROWS = 4, 2, 2, 8
MESH = (2, 2, 1, 1)


def make_task(group_size=GROUP_SIZE, num_partitions=1):
    keras.utils.set_random_seed(0)
    p, batch = TASKS['convolution']()
    p.body.layers[1] = keras_params.KerasParams(
        batch_normalization.BatchNormalization, group_size=group_size, momentum=0.9)
    p.body.Set(num_partitions=num_partitions, num_micro_batches=NUM_MICRO_BATCHES)
    return p, batch


def make_program(num_partitions=1, mesh=MESH, **fields):
    cores = virtual_tpu.make_cores(num_partitions, mesh)
    p, batch = make_task(num_partitions=num_partitions, **fields)
    p.body.devices = cores.devices
    return cores, virtual_tpu.core_program(p, cores, batch[0]), batch


def traced_gradients(cores, program, batch):
    """Return the concrete function from a batch to the gradients and new moving statistics of a replica."""
    def of_replica(batch):
        out, _ = program._value_and_grad(batch, tf.zeros([], tf.int64))
        return [*out.gradients, *[value for _, value in out.state_updates]]

    def step(*batch):
        with tf.device('CPU:0'), cores.active():
            return cores.run(of_replica, (batch,))

    return tf.function(step, autograph=False).get_concrete_function(*batch)


@pytest.fixture(scope='module')
def traced():
    cores, program, batch = make_program()
    return program, batch, traced_gradients(cores, program, batch)


def test_groups_of_replicas_are_those_of_the_sums(traced):
    *_, concrete = traced
    sums = [operation for operation in concrete.graph.get_operations() if operation.type == 'CrossReplicaSum']
    groups = [tf.get_static_value(operation.inputs[1]).tolist() for operation in sums]
    # A sum and its gradient in each micro-batch.
    assert groups.count([[0, 1], [2, 3]]) >= 2 * NUM_MICRO_BATCHES
    assert groups.count([[0, 1, 2, 3]]) >= len(traced[0]._task.body.trainable_variables)
    assert all('TPU_REPLICATED_CORE' in operation.device for operation in sums)


def test_replicas_of_two_cores_share_statistics_on_the_core_of_the_layer():
    cores, program, batch = make_program(num_partitions=2, mesh=(2, 2, 2, 1))
    assert cores.count == NUM_REPLICAS
    graph = traced_gradients(cores, program, batch).graph
    norm, = [index for index, stage in enumerate(program._task.body.stages)
             if any('batch_norm' in layer.name for layer in stage.layers)]
    sums = [operation for operation in graph.get_operations() if operation.type == 'CrossReplicaSum'
            and tf.get_static_value(operation.inputs[1]).tolist() == [[0, 1], [2, 3]]]
    assert len(sums) >= 2 * NUM_MICRO_BATCHES
    assert {operation.device for operation in sums} == {f'/device:TPU_REPLICATED_CORE:{norm}'}


def groups_one_after_the_other(array):
    """Return rows `[R, rows, ...]` such that those which share statistics, over a group and a micro-batch, follow."""
    shape = array.shape[2:]
    parts = array.reshape(NUM_REPLICAS // GROUP_SIZE, GROUP_SIZE, NUM_MICRO_BATCHES, -1, *shape)
    return parts.swapaxes(1, 2).reshape(-1, *shape)


def on_one_device(batch):
    """Return gradients and new moving statistics of a pipeline whose micro-batches are the rows of the groups."""
    p, _ = make_task(group_size=1)
    p.body.Set(devices=['CPU:0'], num_micro_batches=NUM_MICRO_BATCHES * NUM_REPLICAS // GROUP_SIZE)
    task = p.Instantiate()
    task.body.build_from_specs(tf.TensorSpec(batch[0].shape, tf.float32))
    program = train_program.TrainProgram(task, p.train)
    out, _ = tf.function(program._value_and_grad, autograph=False)(tuple(map(tf.constant, batch)), 0)
    return [*out.gradients, *[value for _, value in out.state_updates]]


def lowered(program, batch, concrete):
    """Return the program of a replica as text, and the values of the variables that it takes after the batch."""
    variables = [variable_placement.native(variable) for variable in program.named_variables.values()]
    specs = [tf.TensorSpec(each.shape, each.dtype) for each in batch]
    of_handle = {id(variable._packed_var.packed_handle): variable.values[0].numpy() for variable in variables}
    values = [of_handle[id(tensor)] for tensor in concrete.captured_inputs]
    return stable_hlo.lower(OffItsCores(concrete, True, variables), *specs), values


@needs.tpu_compiler
def test_replicas_compute_what_one_device_does_with_the_rows_of_groups(
        traced, tmp_path, assert_gradients_close):
    program, example, concrete = traced
    random = np.random.default_rng(1)
    batch = [random.normal(size=(NUM_REPLICAS, *example[0].shape)).astype(np.float32),
             random.integers(0, 10, (NUM_REPLICAS, ROWS)).astype(np.int32), np.ones((NUM_REPLICAS, ROWS), np.float32)]
    text, values = lowered(program, example, concrete)
    given = [*batch, *[np.stack([value] * NUM_REPLICAS) for value in values]]
    results = compiled_replicas.run(text, given, NUM_REPLICAS, 1, tmp_path)
    expected = on_one_device(list(map(groups_one_after_the_other, batch)))
    for replica in range(NUM_REPLICAS):
        assert_gradients_close([result[replica] for result in results], expected)


@needs.tpu_compiler
def test_a_tpu_adds_up_statistics_within_groups_and_gradients_over_all(traced, tmp_path):
    program, example, concrete = traced
    hlo = compiled_replicas.hlo_of_tpu(lowered(program, example, concrete)[0], 'v5e:2x2', NUM_REPLICAS, tmp_path)
    groups = collections.Counter(re.findall(r'all-reduce(?:-start)?\(.*replica_groups=(\{\{.*?\}\})', hlo))
    assert groups['{{0,1},{2,3}}'] >= 2  # forward and backward
    assert groups['{{0,1,2,3}}'] and set(groups) == {'{{0,1},{2,3}}', '{{0,1,2,3}}'}
