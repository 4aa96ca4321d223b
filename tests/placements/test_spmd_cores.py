"""The training step by tpu_route='spmd', traced on a `TPUStrategy` over systems that do not exist."""

import collections
from typing import Any, NamedTuple

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.compiler.xla import xla_data_pb2

from lingpipe.layers import transformer
from lingpipe.placements import spmd_cores
from tests import virtual_tpu
from tests.tiny_tasks import transformer_task

VOCAB_SIZE, MODEL_DIM = 256, 64  # enough for the tied table to be cut over the cores


class Traced(NamedTuple):
    cores: Any
    program: Any
    body: Any

    def of_type(self, kind):
        return [node for node in self.body.node_def if node.op == kind]


def make_program(num_stages, mesh):
    cores = virtual_tpu.make_spmd_cores(num_stages, mesh)
    keras.utils.set_random_seed(0)
    p, batch = transformer_task()
    p.body.Set(num_partitions=num_stages, devices=['CPU:0'] * num_stages, layers=transformer.transformer_lm_layers(
        num_stages, VOCAB_SIZE, MODEL_DIM, 16, num_heads=2, residual_dropout_prob=0.1, is_tied=True))
    p.train.Set(ema_decay=0.0, l2_regularizer_weight=0.0)
    task, spec = p.Instantiate(), tf.TensorSpec(batch[0].shape, batch[0].dtype)
    task.body.build_from_specs(spec)
    return cores, spmd_cores.SpmdTrainProgram(task, p.train, cores, spec), batch


@pytest.fixture(
    scope='module', params=[(2, (2, 2, 1, 1)), (4, (2, 2, 1, 2)), (1, (2, 1, 1, 1))], ids=['K=2', 'K=4', 'K=1'])
def traced(request):
    """A call of several steps on two replicas."""
    cores, program, batch = make_program(*request.param)
    iterator = program.iterate(lambda share: tf.data.Dataset.from_tensors(batch).repeat())
    graph = program._function.get_concrete_function(iterator, tf.constant(2, tf.int64)).graph
    body, = (function for function in graph.as_graph_def().library.function
             if any(node.op == 'TPUReplicateMetadata' for node in function.node_def))
    return Traced(cores, program, body)


def test_the_step_loop_holds_one_program_for_cores_of_all_replicas(traced):
    assert 'while_body' in traced.body.signature.name
    metadata, = traced.of_type('TPUReplicateMetadata')
    assert metadata.attr['num_replicas'].i == traced.cores.count == 2
    assert metadata.attr['num_cores_per_replica'].i == traced.cores.num_stages
    assert metadata.attr['use_spmd_for_xla_partitioning'].b
    placed = [node for node in traced.body.node_def if 'TPU_REPLICATED_CORE' in node.device]
    assert all('_tpu_output_identity' in node.attr for node in placed)  # with one core only


def test_each_core_holds_its_slices_in_variables_of_its_own(traced):
    cores = traced.cores
    assignment = cores.strategy.extended._device_assignment
    for entry in traced.program._variables.entries:
        for replica, row in enumerate(entry.slices):
            assert [variable.device[variable.device.index('/task'):] for variable in row] == [
                assignment.tpu_device(replica, core) for core in range(cores.num_stages)]
    sizes = [np.prod(entry.slices[0][0].shape) for entry in traced.program._variables.entries]
    whole = sum(2 * np.prod(variable.shape)
                for variable in traced.program._task.body.trainable_variables)  # with momentum
    assert sum(sizes) == pytest.approx(whole / cores.num_stages, rel=0.05)


def dimensions_of(sharding):
    parsed = xla_data_pb2.OpSharding()
    parsed.ParseFromString(sharding)
    return list(parsed.tile_assignment_dimensions) if parsed.type == parsed.OTHER else []


def test_the_program_gets_the_slices_of_all_cores_as_one_tensor(traced):
    num_stages, entries = traced.cores.num_stages, traced.program._variables.entries
    joined = {node.name: node for node in traced.of_type('TPUPartitionedInputV2')}
    entering = [node for node in traced.of_type('TPUReplicatedInput') if node.attr['is_mirrored_variable'].b]
    assert len(entering) == len(entries) and len(joined) == (len(entries) * 2 if num_stages > 1 else 0)
    cuts = collections.Counter()
    for node in entering:
        assert node.attr['T'].type == tf.resource.as_datatype_enum and len(node.input) == 2
        parts = [joined[name.split(':')[0]] for name in node.input if name.split(':')[0] in joined]
        for part in parts:
            cut = list(part.attr['partition_dims'].list.i)
            assert dimensions_of(part.attr['_XlaSharding'].s) == cut
            assert len(part.input) == num_stages == np.prod(cut or [num_stages])
            cuts[tuple(cut)] += 1
    handles = [name for node in (joined.values() or entering) for name in node.input]
    assert len(set(handles)) == len(handles) == len(entries) * 2 * num_stages
    if num_stages > 1:
        assert cuts[num_stages, 1, 1] and cuts[num_stages, 1] and cuts[()]


def test_the_program_reads_and_assigns_each_tensor_once(traced):
    entering = {node.name for node in traced.of_type('TPUReplicatedInput') if node.attr['is_mirrored_variable'].b}
    for kind in ('ReadVariableOp', 'AssignVariableOp'):
        used = [node.input[0].split(':')[0] for node in traced.of_type(kind) if '_tpu_replicate' in node.attr]
        assert sorted(used) == sorted(entering)
    assert not {node.op for node in traced.body.node_def if node.name in entering} - {'TPUReplicatedInput'}


def test_gradients_and_metrics_are_summed_over_the_replicas(traced):
    body = traced.program._task.body
    metrics = traced.program._task.metric_names(
        tuple(tf.TensorSpec([8, 6], kind) for kind in (tf.int32, tf.float32, tf.float32)))
    num_tensors = len(traced.program._pipeline.variables.stages) + len(traced.program._pipeline.variables.outer)
    assert len(traced.of_type('CrossReplicaSum')) == num_tensors + 2 * len(metrics)
    assert len(body.trainable_variables) >= num_tensors
    norms = traced.of_type('L2Loss')
    assert len(norms) == num_tensors
    by_name = {node.name: node for node in traced.body.node_def}
    for node in norms:
        assert 'CrossReplicaSum' in {each.op for each in before(node, by_name)}


def before(node, by_name, steps=6):
    """Nodes that a node follows from by at most so many steps."""
    if not steps:
        return []
    sources = [by_name[name.split(':')[0]] for name in node.input
               if not name.startswith('^') and name.split(':')[0] in by_name]
    return sources + [each for source in sources for each in before(source, by_name, steps - 1)]
