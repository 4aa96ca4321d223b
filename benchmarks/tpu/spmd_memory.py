"""What a core of a TPU holds when one program runs a Transformer as a shift register over K cores, by the TPU
compiler.

    pip install -e '.[tpu-compile]'
    python -m benchmarks.tpu.spmd_memory --topology=v5e:2x2 --partitions=1,2,4

No TPU is needed. The program is a whole training step: forward, backward, clipping and the update by Adam.
"""

import keras
import tensorflow as tf
from absl import app, flags

from benchmarks.support import common
from lingpipe.layers import transformer
from lingpipe.pipeline import gpipe_layer
from lingpipe.tools.tpu_compile import plan_compilation, tpu_compiler

_TOPOLOGY = flags.DEFINE_string('topology', 'v5e:2x2', 'TPUs to compile for.')
_PARTITIONS = flags.DEFINE_list('partitions', ['1', '2', '4'], 'Values of num_partitions.')
_ROUNDS = flags.DEFINE_list('num_virtual_stages', ['1', '2'], 'Values of num_virtual_stages, where K is 2 or more.')
_RECOMPUTE = flags.DEFINE_list('recompute', ['stage', 'layer'], 'Values of recompute.')
_NUM_LAYERS = flags.DEFINE_integer('num_layers', 8, 'Blocks of the Transformer.')
_MODEL_DIM = flags.DEFINE_integer('model_dim', 512, 'Size of its vectors; the hidden layers are four times as large.')
_VOCAB_SIZE = flags.DEFINE_integer('vocab_size', 8192, 'Number of tokens.')
_LENGTH = flags.DEFINE_integer('length', 256, 'Tokens of a sequence.')
_BATCH_SIZE = flags.DEFINE_integer('batch_size', 16, 'Sequences of a mini-batch.')
_NUM_MICRO_BATCHES = flags.DEFINE_integer('num_micro_batches', 8, 'Micro-batches of a mini-batch.')
_FAST = flags.DEFINE_bool('fast', True, 'Whether the compiler optimises less, in seconds instead of minutes; it then '
                                        'asks for more temporaries.')
_MIB = 2**20


def program(num_partitions, num_virtual_stages, recompute):
    """Returns the training step for K cores, as StableHLO."""
    body = gpipe_layer.GPipeLayer.Params().Set(
        name='body', num_partitions=num_partitions, num_virtual_stages=num_virtual_stages,
        num_micro_batches=_NUM_MICRO_BATCHES.value, recompute=recompute,
        layers=transformer.transformer_lm_layers(
            _NUM_LAYERS.value, _VOCAB_SIZE.value, _MODEL_DIM.value, 4 * _MODEL_DIM.value,
            num_heads=_MODEL_DIM.value // 64))
    tokens = tf.TensorSpec([_BATCH_SIZE.value, _LENGTH.value], tf.int32)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return plan_compilation.lower_spmd(
        body, tokens, tokens, loss, keras.optimizers.Adam(), clip_gradient_norm_to_value=1.0)


def _row(compiler, num_partitions, num_virtual_stages, recompute):
    compiled = compiler.compile(program(num_partitions, num_virtual_stages, recompute), _TOPOLOGY.value,
                                num_partitions, spmd=num_partitions > 1, fast=_FAST.value)
    idle = num_partitions - 1
    bubble = idle / (num_virtual_stages * _NUM_MICRO_BATCHES.value + idle)
    return [num_partitions, num_virtual_stages, recompute, f'{bubble:.1%}', f'{compiled.arguments / _MIB:.1f}', f'{compiled.temporaries / _MIB:.1f}',
            compiled.num_products,
            *(len(compiled.collectives[kind]) for kind in ('collective-permute', 'all-reduce', 'all-gather')),
            f'{compiled.seconds:.0f}']


def main(unused_argv):
    with tpu_compiler.TpuCompiler(timeout_seconds=1800) as compiler:
        rows = [_row(compiler, int(count), int(rounds), recompute)
                for recompute in _RECOMPUTE.value for count in _PARTITIONS.value for rounds in _ROUNDS.value
                if int(count) > 1 or rounds == '1']
    common.report(common.markdown_table(
        ['K', 'V', 'recompute', 'bubble', 'MiB of weights, slots and batch a core', 'MiB of temporaries a core', 'products',
         'collective-permutes', 'all-reduces', 'all-gathers', 'seconds to compile'], rows), f'Compiled for {_TOPOLOGY.value}.')


if __name__ == '__main__':
    app.run(main)
