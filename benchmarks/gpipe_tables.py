"""Table 1 of GPipe (arXiv 1811.06965) for Transformers: the largest model on K devices, by the planner, beside the published one.

    python benchmarks/gpipe_tables.py
"""

import common
import tensorflow as tf
from absl import app, flags

from lingpipe.layers import transformer
from lingpipe.pipeline import schedule as schedules
from lingpipe.planner import accelerators, depth, layer_stack, plan

_NUM_MICRO_BATCHES = flags.DEFINE_integer('num_micro_batches', 32, 'Micro-batches M of the batch of 32.')
_BATCH_SIZE, _LENGTH, _NUM_SLOTS = 32, 1024, 2
# Number of partitions, layers, parameters in millions, and GiB of parameters with optimizer and of activations, over all devices.
_PUBLISHED = [(1, 13, 785.8, 8.8, 6.4), (8, 103, 5300.0, 59.5, 50.9), (32, 415, 21000.0, 235.1, 199.9), (128, 1663, 83900.0, 937.9, 796.1)]
_GIB = 2**30


def transformer_plan(num_layers, num_partitions, recompute):
    """Returns the `Plan` of Transformer-L on cores of a TPU v3, with Adam."""
    stack = layer_stack.LayerStack(
        transformer.transformer_lm_layers(num_layers, vocab_size=32_000, model_dim=2048, hidden_dim=8192, num_heads=32),
        tf.TensorSpec([_BATCH_SIZE, _LENGTH], tf.int32), [_BATCH_SIZE // _NUM_MICRO_BATCHES.value])
    device = accelerators.find('v3')
    return plan.make_plan(plan.Setting(stack, device, device.memory, _NUM_SLOTS),
                          schedules.gpipe(num_partitions, _NUM_MICRO_BATCHES.value), recompute)


def _row(num_partitions, published_layers, published_millions, published_parameters, published_activations, recompute):
    small = transformer_plan(max(3, num_partitions), num_partitions, recompute)
    largest = depth.largest_depth(small, num_partitions).largest
    found = transformer_plan(largest, num_partitions, recompute)
    lasting = sum(part.weights + part.slots for part in found.partitions) / _GIB
    gradients = sum(part.gradients for part in found.partitions) / _GIB
    activations = sum(part.boundary + part.working for part in found.partitions) / _GIB
    millions = sum(part.num_parameters for part in found.partitions) / 1e6
    return [num_partitions, recompute, published_layers, largest, f'{published_millions:,.1f}', f'{millions:,.1f}',
            f'{published_parameters:.1f}', f'{lasting:.1f}', f'{gradients:.1f}', f'{published_activations:.1f}', f'{activations:.1f}',
            'yes' if found.fits else 'no']


def main(unused_argv):
    rows = [_row(*published, recompute) for recompute in ('stage', 'layer') for published in _PUBLISHED]
    common.report(
        common.markdown_table(
            ['K', 'recompute', 'L published', 'L', 'M parameters published', 'M parameters', 'GiB parameters published',
             'GiB weights and slots', 'GiB gradient sums', 'GiB activations published', 'GiB activations', 'fits'], rows),
        'Cores of a TPU v3 with 16 GiB, batch 32, float32, Adam. GPipe counts 12 bytes a parameter, no gradient sums; activations '
        'here are those of the fullest moment of each device, new gradient sums among them.')


if __name__ == '__main__':
    app.run(main)
