"""The SPMD pipeline as its compiler leaves it: run on four CPU devices, and compiled for four cores of a TPU."""

import math
import pathlib
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

from lingpipe.layers import transformer
from lingpipe.pipeline import gpipe_layer
from lingpipe.spmd import spmd_pipeline, spmd_step, stage_map
from lingpipe.stages import losses
from lingpipe.tools import stable_hlo, tpu_compiler
from tests import needs, spmd_values

pytestmark = needs.tpu_compiler

NUM_STAGES, NUM_MICRO_BATCHES, BATCH_SIZE, LENGTH, VOCAB_SIZE, MODEL_DIM = 4, 8, 16, 8, 512, 128
SPEC = tf.TensorSpec([BATCH_SIZE, LENGTH], tf.int32)


def make_pipe(num_rounds=1, **fields):
    """Few weights and no more random numbers than needed: compiling these takes longest."""
    layers = transformer.transformer_lm_layers(
        num_rounds * NUM_STAGES, VOCAB_SIZE, MODEL_DIM, 2 * MODEL_DIM, num_heads=2, **fields)
    keras.utils.set_random_seed(0)
    made = gpipe_layer.GPipeLayer.Params().Set(name='body', layers=layers).Instantiate()
    made.build_from_specs(SPEC)
    return made


def make_step(pipe, is_partitioned, num_rounds=1):
    run = stage_map.longest_run(pipe._untracked.source.params, [SPEC, *[each.outputs for each in pipe.analyses]])
    pipeline = spmd_pipeline.SpmdPipeline(pipe.stack, run, NUM_STAGES, NUM_MICRO_BATCHES, 'stage', is_partitioned,
                                          num_rounds)
    metrics = losses.as_metrics(keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    step = spmd_step.SpmdStep(
        pipeline, lambda targets, outputs: metrics(*targets, outputs), keras.optimizers.SGD(0.1, momentum=0.9))
    return pipeline, step


def lower(pipe, num_rounds=1):
    _, step = make_step(pipe, True, num_rounds)
    return stable_hlo.lower(step, step.state_specs(), SPEC, (SPEC,))


def hand_on_activations_only(collectives):
    return collectives['collective-permute'] and not collectives['all-gather']


@pytest.mark.parametrize('num_rounds', [1, 2])
def test_four_devices_compute_what_one_does(num_rounds, tmp_path, assert_close):
    pipe = make_pipe(num_rounds, input_dropout_prob=0.1, relu_dropout_prob=0.1)
    pipeline, step = make_step(pipe, False, num_rounds)
    state = spmd_values.initial_state(step, pipeline)
    random = np.random.default_rng(0)
    x, y = (random.integers(VOCAB_SIZE, size=SPEC.shape).astype(np.int32) for _ in range(2))
    expected = tf.function(step, jit_compile=True, autograph=False)(state, x, (y,))
    paths = [tmp_path / name for name in ('program.mlir', 'arguments.npz', 'results.npz', 'program.hlo')]
    paths[0].write_text(lower(pipe, num_rounds), encoding='utf-8')
    np.savez(paths[1], *map(np.asarray, tf.nest.flatten((state, x, y))))
    root = pathlib.Path(__file__).parents[2]
    subprocess.run(
        [sys.executable, '-m', 'tests.programs.run_partitioned', *paths, str(NUM_STAGES)], check=True, cwd=root)
    with np.load(paths[2]) as results:
        assert_close([results[f'arr_{index}'] for index in range(len(results))], tf.nest.flatten(expected))
    assert hand_on_activations_only(stable_hlo.collectives(paths[3].read_text(encoding='utf-8')))


@pytest.mark.parametrize('num_rounds, topology', [(1, 'v5e:2x2'), (2, 'v5e:2x2'), (2, 'v6e:2x4')])
def test_cores_of_a_tpu_hold_their_stages_and_pass_on_activations_only(num_rounds, topology):
    pipe = make_pipe(num_rounds)
    with tpu_compiler.TpuCompiler() as compiler:
        compiled = compiler.compile(lower(pipe, num_rounds), topology, NUM_STAGES, spmd=True, fast=True)
    assert hand_on_activations_only(compiled.collectives)
    weights = 4 * sum(math.prod(variable.shape) for variable in pipe.trainable_variables)
    inputs = 2 * 4 * BATCH_SIZE * LENGTH
    assert compiled.arguments - inputs == pytest.approx(2 * weights / NUM_STAGES, rel=0.05)  # with momentum
