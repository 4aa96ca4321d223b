"""What layers keep beside weights, and the moving averages of both, in steps of one program for all cores."""

import pytest
import tensorflow as tf

from lingpipe.optimizers import training_optimizer
from lingpipe.tools import stable_hlo, tpu_compiler
from tests import needs, plain_stack, spmd_conv_norm, spmd_values

pytestmark = needs.xla_on_cpus

BATCH_SIZE, NUM_MICRO_BATCHES = 8, 4


def make_pipe(num_rounds=1, recompute='stage'):
    return spmd_conv_norm.make_pipe(
        spmd_conv_norm.layer_params(2 * num_rounds), BATCH_SIZE, num_partitions=2, num_micro_batches=NUM_MICRO_BATCHES,
        recompute=recompute, devices=['CPU:0'] * 2, num_virtual_stages=num_rounds,
        schedule='circular' if num_rounds > 1 else 'gpipe')


def all_variables(pipe):
    return [variable for layer in pipe.stack for variable in layer.weights]


@pytest.mark.parametrize('num_rounds, recompute', [(1, 'stage'), (1, 'layer'), (2, 'stage'), (2, 'layer')])
def test_frozen_norms_are_those_of_one_device(num_rounds, recompute, assert_close):
    pipe, (x, y) = make_pipe(num_rounds, recompute), spmd_conv_norm.make_batch(BATCH_SIZE)
    pipeline, step = spmd_conv_norm.make_step(pipe, BATCH_SIZE)
    assert len(pipeline.variables.stage_state) == 8 and len(pipeline.variables.outer_state) == 8
    plain, optimizer = plain_stack.PlainStack(pipe, x), spmd_conv_norm.make_optimizer()
    run, state = tf.function(step, jit_compile=True, autograph=False), spmd_values.initial_state(step, pipeline)
    for _ in range(2):
        state, metrics = run(state, x, (y,))
        loss, gradients, _ = plain.value_and_grad(spmd_conv_norm.loss_fn(), x, y, NUM_MICRO_BATCHES)
        optimizer.apply(gradients, plain.trainable_variables)
        assert_close(metrics['loss'], loss)
    found = spmd_values.found_values(pipeline, state.values)
    assert_close([found[id(variable)] for variable in all_variables(pipe)], [each.numpy() for each in plain.weights],
                 1e-4)


def test_batch_norm_in_training_is_refused():
    pipe, (x, y) = make_pipe(), spmd_conv_norm.make_batch(BATCH_SIZE)
    pipe.stack[1].trainable = True
    pipeline, step = spmd_conv_norm.make_step(pipe, BATCH_SIZE)
    with pytest.raises(ValueError, match='a batch norm in training, .* Set its trainable to False, use layer or group'):
        tf.function(step, autograph=False)(spmd_values.initial_state(step, pipeline), x, (y,))


def test_averages_of_weights_and_state_are_those_of_other_routes(assert_close):
    """The rule is that of `MovingAverage`, whose averages follow the variables from step to step."""
    pipe, (x, y) = make_pipe(), spmd_conv_norm.make_batch(BATCH_SIZE)
    pipeline, step = spmd_conv_norm.make_step(pipe, BATCH_SIZE, moved=training_optimizer.step_function(0.15))
    variables = all_variables(pipe)
    other = training_optimizer.MovingAverage({variable.path: variable for variable in variables}, 0.15)
    run, state = tf.function(step, jit_compile=True, autograph=False), spmd_values.initial_state(step, pipeline)
    for index in range(2):
        state, _ = run(state, x, (y,))
        found = spmd_values.found_values(pipeline, state.values)
        for variable in variables:
            variable.assign(found[id(variable)])
        other.update(index)
    averages = spmd_values.found_values(pipeline, state.averages)
    assert_close([averages[id(variable)] for variable in variables], [other.read(variable) for variable in variables])


@needs.tpu_compiler
def test_cores_of_a_tpu_hold_their_averages_and_gather_nothing():
    pipe = make_pipe(num_rounds=2)
    _, step = spmd_conv_norm.make_step(
        pipe, BATCH_SIZE, True, moved=training_optimizer.step_function(0.9))
    x, y = (tf.TensorSpec(each.shape, each.dtype) for each in spmd_conv_norm.make_batch(BATCH_SIZE))
    program = stable_hlo.lower(step, step.state_specs(), x, (y,))
    assert 'tensor<9x2x2x4x4x4xf32>' in program  # what entered each tick
    with tpu_compiler.TpuCompiler() as compiler:
        compiled = compiler.compile(program, 'v5e:2x2', 2, spmd=True, fast=True)
    assert compiled.collectives['collective-permute'] and not compiled.collectives['all-gather']
    arguments = compiled.hlo.splitlines()[0].split('entry_computation_layout={(')[1].split(')->')[0]
    assert arguments.count('f32[1,2,3,3,4,4]') == 2 * 3  # kernels, with momentum and average
    assert arguments.count('f32[1,2,4]') == 2 * 2 * 4  # variables of norms, with average
    assert 'f32[2,2' not in arguments
