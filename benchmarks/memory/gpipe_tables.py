"""Table 1 of GPipe (arXiv 1811.06965): the largest models on K devices, by the planner, beside the published ones.

    python -m benchmarks.memory.gpipe_tables
"""

import tensorflow as tf
from absl import app, flags

from benchmarks.support import common
from lingpipe import schedules
from lingpipe.layers import amoebanet, transformer
from lingpipe.planner import accelerators, picture, plans, resolution

_NUM_MICRO_BATCHES = flags.DEFINE_integer('num_micro_batches', 32, 'Micro-batches M of the batch of 32.')
_BATCH_SIZE, _LENGTH, _NUM_SLOTS = 32, 1024, 2
# Number of partitions, layers, parameters in millions, and GiB of parameters with optimizer and of activations, over
# all devices.
_PUBLISHED = [(1, 13, 785.8, 8.8, 6.4), (8, 103, 5300.0, 59.5, 50.9), (32, 415, 21000.0, 235.1, 199.9), (
    128, 1663, 83900.0, 937.9, 796.1)]
# Number of partitions, L, D, parameters in millions, and GB of parameters with optimizer and of activations, over all
# devices.
_PUBLISHED_AMOEBANETS = [(1, 18, 416, 318, 3.8, 3.46), (2, 18, 544, 542, 6.45, 8.11), (4, 36, 544, 1050, 12.53, 15.21),
                         (8, 72, 512, 1800, 24.62, 26.24)]
_AMOEBANET_BATCH_SIZE, _IMAGE_SIZE = 128, 224
_GIB = 2**30


def transformer_plan(num_layers, num_partitions, recompute):
    """Returns the `Plan` of Transformer-L on cores of a TPU v3, with Adam."""
    stack = resolution.LayerStack(
        transformer.transformer_lm_layers(num_layers, vocab_size=32_000, model_dim=2048, hidden_dim=8192, num_heads=32),
        tf.TensorSpec([_BATCH_SIZE, _LENGTH], tf.int32), [_BATCH_SIZE // _NUM_MICRO_BATCHES.value])
    device = accelerators.find('v3')
    return plans.make_plan(plans.Setting(stack, device, device.memory, _NUM_SLOTS),
                          schedules.gpipe(num_partitions, _NUM_MICRO_BATCHES.value), recompute)


def _totals(found, unit):
    """Over all devices: millions of parameters; bytes of weights with slots, of gradient sums and of activations, over
    `unit`."""
    parts = found.partitions
    sizes = [[part.weights + part.slots, part.gradients, part.boundary + part.working] for part in parts]
    return [sum(part.num_parameters for part in parts) / 1e6, *(sum(column) / unit for column in zip(*sizes))]


def _row(num_partitions, published_layers, published_millions, published_parameters, published_activations, recompute):
    small = transformer_plan(max(3, num_partitions), num_partitions, recompute)
    largest = picture.largest_depth(small, num_partitions).largest
    found = transformer_plan(largest, num_partitions, recompute)
    millions, lasting, gradients, activations = _totals(found, _GIB)
    return [num_partitions, recompute, published_layers, largest, f'{published_millions:,.1f}', f'{millions:,.1f}',
            f'{published_parameters:.1f}', f'{lasting:.1f}', f'{gradients:.1f}', f'{published_activations:.1f}',
            f'{activations:.1f}',
            'yes' if found.fits else 'no']


def amoebanet_plan(num_cells, reduction_size, num_partitions, recompute):
    """Returns the `Plan` of AmoebaNet-D(L, D) on cores of a TPU v2, with RMSProp and momentum."""
    spec = tf.TensorSpec([_AMOEBANET_BATCH_SIZE, _IMAGE_SIZE, _IMAGE_SIZE, 3])
    layers = amoebanet.amoebanet_layers('D', num_cells, reduction_size, num_classes=1000)
    stack = resolution.LayerStack(layers, spec, [_AMOEBANET_BATCH_SIZE // _NUM_MICRO_BATCHES.value])
    device = accelerators.find('v2')
    return plans.make_plan(plans.Setting(stack, device, device.memory, _NUM_SLOTS),
                          schedules.gpipe(num_partitions, _NUM_MICRO_BATCHES.value), recompute)


def _amoebanet_row(num_partitions, num_cells, reduction_size, published_millions, published_parameters,
                   published_activations,
                   recompute):
    found = amoebanet_plan(num_cells, reduction_size, num_partitions, recompute)
    millions, lasting, gradients, activations = _totals(found, 1e9)
    return [num_partitions, f'({num_cells}, {reduction_size})', recompute, f'{published_millions:,}',
            f'{millions:,.0f}',
            f'{published_parameters:.2f}', f'{lasting:.2f}', f'{gradients:.2f}', f'{published_activations:.2f}',
            f'{activations:.2f}', f'{max(found.device_bytes) / 1e9:.2f}', 'yes' if found.fits else 'no']


def main(unused_argv):
    amoebanets = [_amoebanet_row(*published, recompute)
                  for recompute in ('stage', 'layer') for published in _PUBLISHED_AMOEBANETS]
    rows = [_row(*published, recompute) for recompute in ('stage', 'layer') for published in _PUBLISHED]
    common.report(
        'Transformer: cores of a TPU v3 with 16 GiB, batch 32, float32, Adam.',
        common.markdown_table(
            ['K', 'recompute', 'L published', 'L', 'M parameters published', 'M parameters', 'GiB parameters published',
             'GiB weights and slots', 'GiB gradient sums', 'GiB activations published', 'GiB activations', 'fits'],
             rows),
        'AmoebaNet: cores of a TPU v2 with 8 GiB, images of 224 x 224, batch 128, RMSProp with momentum.',
        common.markdown_table(
            ['K', '(L, D)', 'recompute', 'M parameters published', 'M parameters', 'GB parameters published',
             'GB weights and slots', 'GB gradient sums', 'GB activations published', 'GB activations',
                 'GB fullest device',
             'fits'], amoebanets),
        'GPipe counts 12 bytes a parameter, no gradient sums; activations here are those of the fullest moment of each '
        'device, new gradient sums among them.')


if __name__ == '__main__':
    app.run(main)
