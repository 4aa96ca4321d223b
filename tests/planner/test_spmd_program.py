import keras
import tensorflow as tf

from lingpipe.layers import transformer
from lingpipe.pipeline import gpipe_layer
from lingpipe.planner import spmd_program


def lower(num_partitions, **fields):
    body = gpipe_layer.GPipeLayer.Params().Set(
        name='body', num_partitions=num_partitions, num_micro_batches=2, layers=transformer.transformer_lm_layers(2, 16, 8, 8, 2), **fields)
    tokens = tf.TensorSpec([4, 4], tf.int32)
    return spmd_program.lower(
        body, tokens, tokens, keras.losses.SparseCategoricalCrossentropy(from_logits=True), keras.optimizers.Adam())


def test_a_program_for_one_device_has_nothing_for_the_partitioner():
    assert 'Sharding' not in lower(1)


def test_stages_enter_and_leave_what_the_partitioner_leaves_alone():
    program = lower(2)
    assert 'SPMDFullToShardShape' in program and 'SPMDShardToFullShape' in program


def test_recomputation_of_layers_has_more_barriers():
    stage, layer = (lower(2, recompute=mode).count('stablehlo.optimization_barrier') for mode in ('stage', 'layer'))
    assert 0 < stage < layer
