import functools

import keras
import tensorflow as tf

from lingpipe.layers import embeddings, transformer
from lingpipe.pipeline import gpipe_layer
from lingpipe.tools.tpu_compile import plan_compilation
from tests import needs

pytestmark = [needs.xla_on_cpus, needs.stablehlo]


@functools.cache
def lower(num_partitions, recompute='stage'):
    stages = [transformer.FeedForward.Params().Set(name=f'stage_{index}', hidden_dim=8) for index in range(2)]
    layers = [embeddings.TokenEmbedding.Params().Set(name='embedding', vocab_size=16, model_dim=8), *stages,
              embeddings.SoftmaxHead.Params().Set(name='softmax', vocab_size=16)]
    body = gpipe_layer.GPipeLayer.Params().Set(
        name='body', num_partitions=num_partitions, num_micro_batches=2, layers=layers, recompute=recompute)
    tokens = tf.TensorSpec([4, 4], tf.int32)
    return plan_compilation.lower_spmd(
        body, tokens, tokens, keras.losses.SparseCategoricalCrossentropy(from_logits=True), keras.optimizers.Adam())


def test_a_program_for_one_device_has_nothing_for_the_partitioner():
    assert 'Sharding' not in lower(1)


def test_stages_enter_and_leave_what_the_partitioner_leaves_alone():
    program = lower(2, 'stage')
    assert 'SPMDFullToShardShape' in program and 'SPMDShardToFullShape' in program


def test_recomputation_of_layers_has_more_barriers():
    stage, layer = (lower(2, mode).count('stablehlo.optimization_barrier') for mode in ('stage', 'layer'))
    assert 0 < stage < layer
