import keras
import numpy as np
import pytest
import tensorflow as tf

from lingpipe.layers.keras_params import KerasParams
from lingpipe.pipeline import gpipe_layer
from lingpipe.spmd import spmd_pipeline, spmd_step, stage_map
from lingpipe.stages import losses
from tests import needs, spmd_values

pytestmark = needs.xla_on_cpus

BATCH_SIZE, UNITS = 8, 4


def build():
    """Return a pipeline of one partition, and the same layers as two stages with layers before and after."""
    layers = [KerasParams(keras.layers.Dense, units=UNITS, activation='tanh')] * 3 + [
        KerasParams(keras.layers.Dense, units=2)]
    spec = tf.TensorSpec([BATCH_SIZE, UNITS], tf.float32)
    pipe = gpipe_layer.GPipeLayer.Params().Set(name='body', layers=layers, random_seed=0).Instantiate()
    pipe.build_from_specs(spec)
    run = stage_map.longest_run(pipe._untracked.source.params, [spec, *[each.outputs for each in pipe.analyses]])
    return pipe, spmd_pipeline.SpmdPipeline(pipe.stack, run, 2, 2, is_partitioned=False)


def batch():
    random = np.random.default_rng(0)
    return random.normal(size=(BATCH_SIZE,
                               UNITS)).astype(np.float32), random.normal(size=(BATCH_SIZE, 2)).astype(np.float32)


def values_of(state, pipeline, variables):
    found = spmd_values.found_values(pipeline, state.values)
    return [found[id(variable)] for variable in variables]


OPTIMIZERS = {
    'adamw_schedule': lambda: keras.optimizers.AdamW(
        keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5), weight_decay=0.1),
    'muon': lambda: keras.optimizers.Muon(0.1, weight_decay=None,
                                          adam_weight_decay=0.5)}  # by the norm of each layer's weight


@pytest.mark.parametrize('name', sorted(OPTIMIZERS))
def test_steps_equal_those_of_the_plain_optimizer(name, assert_close):
    pipe, pipeline = build()
    x, y = batch()
    step = make_step(pipeline, OPTIMIZERS[name]())
    function = tf.function(step, jit_compile=True, autograph=False)
    state, optimizer = spmd_values.initial_state(step, pipeline), OPTIMIZERS[name]()
    for _ in range(3):
        state, metrics = function(state, x, (y,))
        out = pipe.value_and_grad(keras.losses.MeanSquaredError(), x, y)
        optimizer.apply(out.gradients, pipe.trainable_variables)
        assert_close((metrics['loss'], metrics['gradient_norm']), (out.loss, tf.sqrt(out.squared_norm)))
        assert_close(
            values_of(state, pipeline, pipe.trainable_variables), [v.numpy() for v in pipe.trainable_variables], 1e-4)
    assert int(state.step) == 3


def make_step(pipeline, optimizer, **kwargs):
    metrics = losses.as_metrics(keras.losses.MeanSquaredError())
    return spmd_step.SpmdStep(pipeline, lambda targets, outputs: metrics(*targets, outputs), optimizer, **kwargs)


def one_step(pipeline, **kwargs):
    (x, y), step = batch(), make_step(pipeline, keras.optimizers.SGD(1.0), **kwargs)
    return tf.function(step, jit_compile=True, autograph=False)(spmd_values.initial_state(step, pipeline), x, (y,))


@pytest.mark.parametrize('regularizer', [keras.regularizers.L2(0.1), keras.regularizers.OrthogonalRegularizer(0.1)],
                         ids=['sum over numbers', 'of a whole weight'])
def test_weight_regularizers_count_as_on_one_device(regularizer, assert_close):
    pipe, pipeline = build()
    for variable in pipe.trainable_variables:
        variable.regularizer = regularizer if len(variable.shape) == 2 else None
    state, metrics = one_step(pipeline)
    out = pipe.value_and_grad(keras.losses.MeanSquaredError(), *batch())
    assert_close((metrics['loss'], metrics['gradient_norm']), (out.loss, tf.sqrt(out.squared_norm)))
    expected = [variable.value - gradient for variable, gradient in zip(pipe.trainable_variables, out.gradients)]
    assert_close(values_of(state, pipeline, pipe.trainable_variables), expected)


def test_gradients_are_clipped_by_their_global_norm(assert_close):
    pipe, pipeline = build()
    state, metrics = one_step(pipeline, clip_gradient_norm_to_value=0.1)
    out = pipe.value_and_grad(keras.losses.MeanSquaredError(), *batch())
    clipped, norm = tf.clip_by_global_norm(out.gradients, 0.1)
    assert norm > 0.1
    expected = [variable.value - gradient for variable, gradient in zip(pipe.trainable_variables, clipped)]
    assert_close(values_of(state, pipeline, pipe.trainable_variables), expected)
    assert_close(metrics['gradient_norm'], norm)
