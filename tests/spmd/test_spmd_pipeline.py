"""The shift register on one device; tests/planner compiles it for cores of a TPU, and runs it on several devices."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from lingpipe.layers import transformer
from lingpipe.layers.keras_params import KerasParams
from lingpipe.pipeline import gpipe_layer
from lingpipe.spmd import spmd_pipeline, stage_map
from lingpipe.spmd.stage_map import SpmdValues
from lingpipe.stages import losses
from tests import needs, spmd_values

pytestmark = needs.xla_on_cpus

BATCH_SIZE, LENGTH, VOCAB_SIZE, SEED, STEP = 8, 6, 16, 3, 5


def build(layers, spec, **fields):
    params = gpipe_layer.GPipeLayer.Params().Set(name='body', layers=layers, random_seed=SEED, **fields)
    pipe = params.Instantiate()
    pipe.build_from_specs(spec)
    specs = [spec, *[each.outputs for each in pipe.analyses]]
    return pipe, stage_map.longest_run(pipe._untracked.source.params, specs)


def small_transformer(num_blocks=3, **fields):
    layers = transformer.transformer_lm_layers(num_blocks, VOCAB_SIZE, 8, 12, 2, **fields)
    return layers, tf.TensorSpec([BATCH_SIZE, LENGTH], tf.int32)


def tokens():
    random = np.random.default_rng(0)
    return [random.integers(VOCAB_SIZE, size=(BATCH_SIZE, LENGTH)).astype(np.int32) for _ in range(2)]


cross_entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def gradients_of(pipeline, loss_fn, x, y):
    """Return the mean loss, and a dictionary from id of variable to gradient of the mean."""
    metrics_of = losses.as_metrics(loss_fn)

    @tf.function(jit_compile=True, autograph=False)
    def function(values):
        with tf.GradientTape() as tape:
            tape.watch([values.stages, values.outer])
            metrics = pipeline.metrics(lambda targets, outputs: metrics_of(*targets, outputs), values, x, (y,),
                                       tf.constant([SEED, STEP], tf.int64))
        total, weight = metrics['loss']
        stages, outer = tape.gradient(total, [values.stages, values.outer])
        return total / weight, [each / weight for each in stages], [each / weight for each in outer]

    loss, stages, outer = function(spmd_values.values_of(pipeline))
    return loss, spmd_values.found_values(pipeline, SpmdValues(stages, outer, [], []))


def check_equal(pipe, pipeline, loss_fn, x, y, assert_gradients_close):
    loss, found = gradients_of(pipeline, loss_fn, x, y)
    expected = pipe.value_and_grad(loss_fn, x, y, step=STEP)
    np.testing.assert_allclose(loss, expected.loss, rtol=1e-5)
    assert_gradients_close([found[id(variable)] for variable in pipe.trainable_variables], expected.gradients)


def test_layers_that_k_does_not_divide_run_before_the_stages(assert_gradients_close):
    pipe, run = build(*small_transformer(is_tied=True))
    pipeline = spmd_pipeline.SpmdPipeline(pipe.stack, run, 2, 2, is_partitioned=False)
    names = {variable.path.split('/')[0] for row in pipeline.variables.stages for core in row
             for variable in core}
    assert names == {'block_1', 'block_2'}
    check_equal(pipe, pipeline, cross_entropy, *tokens(), assert_gradients_close)


class DroppedTwice(keras.layers.Dense):
    """Draws random numbers in two places."""

    def build(self, input_shape):
        super().build(input_shape)
        self.dropouts = [keras.layers.Dropout(0.2), keras.layers.Dropout(0.2)]

    def call(self, inputs, training=False):
        before, after = self.dropouts
        return after(super().call(before(inputs, training=training)), training=training)


def test_random_numbers_are_those_of_every_compiled_pipeline(assert_gradients_close):
    stack = [KerasParams(keras.layers.Dropout, rate=0.2), *[KerasParams(DroppedTwice, units=4)] * 4]
    pipe, run = build(stack, tf.TensorSpec([8, 4], tf.float32), num_micro_batches=4, jit_compile=True)
    pipeline = spmd_pipeline.SpmdPipeline(pipe.stack, run, 2, 4, is_partitioned=False, num_rounds=2)
    x, y = np.random.default_rng(0).normal(size=(2, 8, 4)).astype(np.float32)
    check_equal(pipe, pipeline, keras.losses.MeanSquaredError(), x, y, assert_gradients_close)


@pytest.mark.parametrize('num_cores, num_micro_batches, recompute, num_rounds', [
    (1, 4, 'layer', 1), (2, 1, 'stage', 1), (4, 2, 'stage', 1), (2, 4, 'layer', 2), (1, 2, 'stage', 4)])
def test_gradients_equal_those_of_one_device(num_cores, num_micro_batches, recompute, num_rounds,
                                             assert_gradients_close):
    layers = [KerasParams(keras.layers.Dense, units=4, activation='tanh')] * 4
    pipe, run = build(layers, tf.TensorSpec([8, 4], tf.float32))
    pipeline = spmd_pipeline.SpmdPipeline(
        pipe.stack, run, num_cores, num_micro_batches, recompute, is_partitioned=False, num_rounds=num_rounds)
    assert not pipeline.variables.outer
    x, y = np.random.default_rng(0).normal(size=(2, 8, 4)).astype(np.float32)
    check_equal(pipe, pipeline, keras.losses.MeanSquaredError(), x, y, assert_gradients_close)


def make(layers, spec, num_cores=2, **fields):
    pipe, run = build(layers, spec)
    return spmd_pipeline.SpmdPipeline(pipe.stack, run, num_cores, 2, is_partitioned=False, **fields)


def test_what_cannot_run_so_is_refused_in_words():
    with pytest.raises(ValueError, match="num_partitions=2 times num_virtual_stages=2 layers in a row.*finds 3"):
        make(*small_transformer(), num_rounds=2)
    with pytest.raises(ValueError, match='num_micro_batches=2 is less than num_partitions=3.* Set .* to 3 or more'):
        make(*small_transformer(6), num_cores=3, num_rounds=2)
    constrained = [KerasParams(keras.layers.Dense, units=4,
                               kernel_constraint=KerasParams(keras.constraints.NonNeg))] * 2
    with pytest.raises(ValueError, match='weights without constraint.*kernel.*have one'):
        make(constrained, tf.TensorSpec([8, 4], tf.float32))
    frozen, run = build([KerasParams(keras.layers.Dense, units=4)] * 2, tf.TensorSpec([8, 4], tf.float32))
    frozen.stack[0].trainable = False
    with pytest.raises(ValueError, match='some of these layers are set trainable=False'):
        spmd_pipeline.SpmdPipeline(frozen.stack, run, 2, 2, is_partitioned=False)
    frozen.stack[0] = frozen.stack[1]
    with pytest.raises(ValueError, match="gives every stage variables of its own, but 'dense_1/kernel' belongs to"):
        spmd_pipeline.SpmdPipeline(frozen.stack, run, 2, 2, is_partitioned=False)
    x, y = np.zeros((2, 8, 4), np.float32)
    with pytest.raises(ValueError, match='has 7 rows.*num_micro_batches=2 must divide the batch size'):
        gradients_of(make([KerasParams(keras.layers.Dense, units=4)] * 2, tf.TensorSpec([8, 4], tf.float32)),
                     keras.losses.MeanSquaredError(), x[:7], y[:7])
