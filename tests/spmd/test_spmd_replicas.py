"""A step on replicas of partitioned cores: run on two replicas of two CPU devices, and compiled for as many cores of a
TPU."""

import re

import numpy as np
import pytest
import tensorflow as tf

from lingpipe.tools import stable_hlo
from tests import compiled_replicas, needs, plain_stack, spmd_conv_norm, spmd_values, xla_replicas

pytestmark = needs.tpu_compiler

NUM_STAGES, NUM_MICRO_BATCHES, ROWS = 2, 2, 4


def lowered(num_replicas, num_rounds=1, on_cores=lambda step: step):
    """Return a pipeline for all rows, the `SpmdPipeline` and the step of a replica, and the program as text."""
    pipe = spmd_conv_norm.make_pipe(
        spmd_conv_norm.layer_params(NUM_STAGES * num_rounds), ROWS, num_partitions=NUM_STAGES,
        num_micro_batches=NUM_MICRO_BATCHES, devices=['CPU:0'] * NUM_STAGES, num_virtual_stages=num_rounds,
        schedule='circular' if num_rounds > 1 else 'gpipe')
    replicas = xla_replicas.XlaReplicas(num_replicas)
    pipeline, step = spmd_conv_norm.make_step(pipe, ROWS, True, replicas=replicas)
    x, y = (tf.TensorSpec(each.shape, each.dtype) for each in spmd_conv_norm.make_batch(ROWS))
    with replicas.active():
        return pipe, pipeline, step, stable_hlo.lower(on_cores(step), step.state_specs(), x, (y,))


@pytest.mark.parametrize('num_replicas, num_rounds', [(2, 2), (4, 1)])
def test_updates_follow_the_rows_of_all_replicas(num_replicas, num_rounds, tmp_path, assert_close):
    pipe, pipeline, step, program = lowered(num_replicas, num_rounds, xla_replicas.on_all_cores)
    state, whole = spmd_values.initial_state(step, pipeline), spmd_conv_norm.make_batch(num_replicas * ROWS)
    batch = [each.reshape(num_replicas, ROWS, *each.shape[1:]) for each in whole]
    arguments = [*(np.stack([each] * num_replicas) for each in tf.nest.flatten(state)), *batch]
    results = compiled_replicas.run(program, arguments, num_replicas, NUM_STAGES, tmp_path)
    new, metrics = tf.nest.pack_sequence_as((state, {'loss': 0, 'gradient_norm': 0}), [each[0] for each in results])
    found = spmd_values.found_values(pipeline, new.values)

    plain = plain_stack.PlainStack(pipe, whole[0])
    loss, gradients, _ = plain.value_and_grad(spmd_conv_norm.loss_fn(), *whole, 1)
    spmd_conv_norm.make_optimizer().apply(gradients, plain.trainable_variables)
    assert_close(metrics['loss'], loss)
    variables = [variable for layer in pipe.stack for variable in layer.weights]
    assert_close([found[id(variable)] for variable in variables], [each.numpy() for each in plain.weights], 1e-4)


def test_cores_of_a_tpu_sum_gradients_and_gather_no_weights(tmp_path):
    lines = compiled_replicas.hlo_of_tpu(lowered(4)[-1], 'v5e:2x4', 4, tmp_path).splitlines()
    sums = [line for line in lines if ' all-reduce(' in line and 'channel_id' not in line]  # with one: in a replica
    assert {re.search(r'replica_groups=(\{\{.*?\}\})', line)[1] for line in sums} == {'{{0,1,2,3}}'}
    assert not [line for line in lines if ' all-gather(' in line and '3,3,4,4]' in line]
