"""Batch norm and moving averages in the training step by tpu_route='spmd', traced on a `TPUStrategy` over a system that
does not exist."""

import numpy as np
import pytest
import tensorflow as tf

from lingpipe.models import image_classifier
from lingpipe.placements import spmd_cores
from tests import spmd_conv_norm, virtual_tpu
from tests.tiny_tasks import configured

NUM_STAGES, GROUP_SIZE, ROWS = 2, 2, 16


def make_program(group_size=GROUP_SIZE):
    cores = virtual_tpu.make_spmd_cores(NUM_STAGES, (2, 2, 1, 2))
    p = configured(image_classifier.ImageClassifier.Params().Set(name='tiny'))
    p.body.Set(layers=spmd_conv_norm.layer_params(NUM_STAGES, group_size=group_size), devices=['CPU:0'] * NUM_STAGES)
    task, spec = p.Instantiate(), tf.TensorSpec([ROWS, *spmd_conv_norm.SHAPE])
    task.body.build_from_specs(spec)
    return spmd_cores.SpmdTrainProgram(task, p.train, cores, spec)


def traced(program):
    """Returns the graph of a call of several steps."""
    x, y = spmd_conv_norm.make_batch(ROWS)
    iterator = program.iterate(
        lambda share: tf.data.Dataset.from_tensors((x, y, np.ones(ROWS, np.float32))).repeat())
    return program._function.get_concrete_function(iterator, tf.constant(2, tf.int64)).graph.as_graph_def()


def test_statistics_are_summed_over_groups_and_all_replicas():
    program, groups = make_program(), []
    for function in traced(program).library.function:
        constants = {node.name: tf.make_ndarray(node.attr['value'].tensor) for node in function.node_def
                     if node.op == 'Const'}
        groups += [constants[node.input[1].split(':')[0]].tolist() for node in function.node_def
                   if node.op == 'CrossReplicaSum' and node.input[1].split(':')[0] in constants]
    within, among_all = [[0, 1], [2, 3]], [[0, 1, 2, 3]]
    values, metrics = program._pipeline.variables(), program._metric_names
    assert groups.count(within) >= 2 * 4  # forward and backward
    assert groups.count(among_all) == len(values.stages) + len(values.outer) + 2 * len(metrics) + 2 * 3
    assert len(groups) == groups.count(within) + groups.count(among_all)


def test_groups_that_do_not_divide_the_replicas_are_refused():
    program = make_program(group_size=3)
    with pytest.raises(ValueError, match='group_size=3 does not divide num_replicas=4.*one of .1, 2, 4.'):
        traced(program)


def test_the_host_gets_what_cores_keep_beside_weights():
    program = make_program()
    variables = [*program._task.body.weights, *program.average.averages.values()]
    random = np.random.default_rng(0)
    values = [random.normal(size=variable.shape).astype(np.float32) for variable in variables]
    for variable, value in zip(variables, values):
        variable.assign(value)
    program.state_restored()
    for variable, value in zip(variables, values):
        variable.assign(np.zeros_like(value))
    program._variables.to_host()
    for variable, value in zip(variables, values):
        np.testing.assert_array_equal(variable.numpy(), value)
