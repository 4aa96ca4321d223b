"""Compares three rules that cut a stack of layers into partitions, by the time of the heaviest partition.

    python -m benchmarks.speed.partition_quality

A step is as slow as its heaviest partition. The layers of AmoebaNet-D and of a decoder with heavy ends are timed here,
on one core, forward and backward; a third profile is fixed, so that everyone gets the same figures for it.
"""

import statistics
import time

import keras
import numpy as np
import tensorflow as tf
from absl import app, flags

from benchmarks.support import common
from lingpipe.devices import device_kinds
from lingpipe.layers import amoebanet, base_layer, keras_params
from lingpipe.partition import exact_cut, layer_analysis, layer_memory, layer_profile, memory_model

_NUM_PARTITIONS = flags.DEFINE_list('num_partitions', ['2', '3', '4', '8'], 'Numbers of partitions K.')
_ROWS = flags.DEFINE_integer('rows', 16, 'Examples in a micro-batch.', lower_bound=1)
_CACHE_DIR = flags.DEFINE_string('cache_dir', None, 'Folder to keep measured times in; none by default.')
_NUM_CELLS = flags.DEFINE_integer('num_cells', 6, 'AmoebaNet-D: normal cells L.')
_REDUCTION_SIZE = flags.DEFINE_integer('reduction_size', 64, 'AmoebaNet-D: filters of the first normal cells D.')
_IMAGE_SIZE = flags.DEFINE_integer('image_size', 64, 'AmoebaNet-D: height and width of the images in pixels.')
_NUM_BLOCKS = flags.DEFINE_integer('num_blocks', 12, 'Decoder: blocks.', lower_bound=1)
_WIDTH = flags.DEFINE_integer('width', 256, 'Decoder: features, in four heads.')
_LENGTH = flags.DEFINE_integer('length', 64, 'Decoder: tokens of an example.')
_VOCABULARY = flags.DEFINE_integer('vocabulary', 8000, 'Decoder: number of different tokens.')

# Milliseconds of a forward and backward pass through each of ten layers, as measured once on a CPU.
_FIXED_MILLISECONDS = [264, 95, 92, 88, 87, 86, 90, 85, 85, 7]


def exact_ends(costs, num_partitions):
    """LingPipe's cut."""
    return exact_cut.balanced_partition_ends(costs, num_partitions)


def block_ends(costs, num_partitions):
    """The cut that torchgpipe's documentation of `torchgpipe.balance` names: Bárány and Grinberg's block partition.

    After the proof in "Block partitions of sequences" (arXiv 1308.2452): as long as the heaviest part exceeds the
    lightest by more than the heaviest layer, the lightest takes a layer from its neighbour on the side of the heaviest.
    It starts from parts of equally many layers.
    """
    bounds = [len(costs) // num_partitions * part for part in range(num_partitions)] + [len(costs)]
    while True:
        sums = _part_costs(costs, bounds[1:])
        heaviest = int(np.argmax(sums))
        lightest = min(range(num_partitions), key=lambda part: (sums[part], abs(part - heaviest)))
        if sums[heaviest] <= sums[lightest] + max(costs):
            return bounds[1:]
        if lightest > heaviest:
            bounds[lightest] -= 1
        else:
            bounds[lightest + 1] += 1


def histogram_ends(costs, num_partitions):
    """The cut of Lingvo's `PartitionSequentialLayers` (lingvo/core/gpipe.py), one pass over the layers.

    A layer goes into partition `floor(K * share)`, K - 1 at most, where `share` is what it and all layers before it
    cost of the whole. Partitions may stay empty.
    """
    shares = np.cumsum(costs) / np.sum(costs)
    parts = np.minimum((shares * num_partitions).astype(int), num_partitions - 1)
    return [int(np.sum(parts <= part)) for part in range(num_partitions)]


RULES = {'exact': exact_ends, 'torchgpipe': block_ends, 'Lingvo': histogram_ends}


def _part_costs(costs, ends):
    return [sum(costs[start:end]) for start, end in zip([0, *ends], ends)]


class DecoderBlock(base_layer.BaseLayer):
    """Causal attention and a feed-forward network, each normalised before and added to its input."""

    @classmethod
    def Params(cls):
        p = super().Params()
        p.Define('width', 256, 'Number of features, a multiple of 4.')
        return p

    def __init__(self, params, **kwargs):
        super().__init__(params, **kwargs)
        self.attention_norm = keras.layers.LayerNormalization()
        self.attention = keras.layers.MultiHeadAttention(4, params.width // 4)
        self.feed_forward_norm = keras.layers.LayerNormalization()
        self.expansion = keras.layers.Dense(4 * params.width, activation='gelu')
        self.projection = keras.layers.Dense(params.width)

    def build(self, input_shape):
        for layer in (self.attention_norm, self.feed_forward_norm, self.expansion):
            layer.build(input_shape)
        self.attention.build(input_shape, input_shape)
        self.projection.build((*input_shape[:-1], 4 * self.params.width))

    def call(self, inputs):
        """Maps `[batch, length, width]` to the same shape."""
        x = self.attention_norm(inputs)
        x = inputs + self.attention(x, x, use_causal_mask=True)
        return x + self.projection(self.expansion(self.feed_forward_norm(x)))

    def compute_output_shape(self, input_shape):
        return input_shape


def _amoebanet():
    layers = amoebanet.amoebanet_layers(
        'D', _NUM_CELLS.value, _REDUCTION_SIZE.value, num_classes=1001, use_auxiliary_head=False)
    return layers, tf.TensorSpec([_ROWS.value, _IMAGE_SIZE.value, _IMAGE_SIZE.value, 3])


def _decoder():
    width, vocabulary = _WIDTH.value, _VOCABULARY.value
    embedding = keras_params.KerasParams(
        keras.layers.Embedding, input_dim=vocabulary, output_dim=width, name='embedding')
    softmax = keras_params.KerasParams(keras.layers.Dense, units=vocabulary, activation='softmax', name='softmax')
    blocks = [DecoderBlock.Params().Set(name=f'block_{index}', width=width) for index in range(_NUM_BLOCKS.value)]
    return [embedding, *blocks, softmax], tf.TensorSpec([_ROWS.value, _LENGTH.value], tf.int32)


_STACKS = {'AmoebaNet-D': _amoebanet, 'decoder': _decoder}


def measure(name):
    """Times every layer of a stack, in a process with a core of its own, as a device of a pipeline would have.

    Yields:
        List of the milliseconds of each layer, forward and backward.
    """
    device_kinds.use_virtual_devices(1)
    layer_params, inputs = _STACKS[name]()
    times = layer_profile.profile_layers(
        layer_analysis.named_layer_params(layer_params), inputs, '/device:CPU:0', _CACHE_DIR.value)
    yield [1e3 * layer.seconds for layer in times]


def _measured(name):
    with common.Process(measure, name, num_cores=1) as process:
        return process.next()


def _row(name, costs, num_partitions):
    cuts = [rule(costs, num_partitions) for rule in RULES.values()]
    mean = sum(costs) / num_partitions
    heaviest = [max(_part_costs(costs, ends)) for ends in cuts]
    return [name, num_partitions, f'{mean:.1f}', *[f'{part:.1f} ({part / mean:.2f})' for part in heaviest],
            *[' '.join(str(end - start) for start, end in zip([0, *ends], ends)) for ends in cuts]]


def _cut_milliseconds(**arguments):
    """Median time of the exact cut of 2,000 random layers into 64 partitions."""
    costs, seconds = np.random.default_rng(0).random(2000), []
    for _ in range(5):
        start = time.perf_counter()
        exact_cut.balanced_partition_ends(costs, 64, **arguments)
        seconds.append(time.perf_counter() - start)
    return 1e3 * statistics.median(seconds)


def _cut_sentence():
    sizes = layer_memory.LayerMemory(weights=4, state=0, inputs=1, internals=4, outputs=1)
    estimate = memory_model.MemoryModel([sizes] * 2000, np.arange(64, 0, -1), 'stage', num_slots=2)
    limited = _cut_milliseconds(memory=estimate, memory_limit=1000)
    return (f'The exact cut of 2,000 layers into 64 partitions takes {_cut_milliseconds():.0f} ms, with a memory limit '
            f'{limited:.0f} ms.')


def main(unused_argv):
    profiles = {'fixed': _FIXED_MILLISECONDS, **{name: _measured(name) for name in _STACKS}}
    rows = [_row(name, costs, num_partitions) for name, costs in profiles.items()
            for num_partitions in map(int, _NUM_PARTITIONS.value) if num_partitions <= len(costs)]
    layers = [[name, ' '.join(f'{cost:.1f}' for cost in costs)] for name, costs in profiles.items()]
    common.report(
        'Heaviest partition in ms (over the mean of all), and layers in each partition.',
        common.markdown_table(['profile', 'K', 'mean', *RULES, *[f'{rule}: layers' for rule in RULES]], rows),
        'Milliseconds of the layers, forward and backward: '
        + '; '.join(f'{name} {milliseconds}' for name, milliseconds in layers) + '.',
        _cut_sentence())


if __name__ == '__main__':
    app.run(main)
