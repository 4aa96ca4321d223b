"""Tables 2 and 3 of GPipe (arXiv 1811.06965): normalised throughput over K and M, planned beside published.

    python -m benchmarks.scaling.gpipe_throughput
"""

from typing import NamedTuple

import tensorflow as tf
from absl import app, flags

from benchmarks.support import common
from lingpipe import schedules
from lingpipe.layers import amoebanet, transformer
from lingpipe.partition import accelerators
from lingpipe.pipeline import layer_sources
from lingpipe.planner import plans, resolution

_BATCH_SIZE = flags.DEFINE_integer('batch_size', 128, 'Examples in a step; the paper tunes them for every cell.')
_PARTITIONS, _COUNTS = (2, 4, 8), (1, 4, 32)
_PCI_EXPRESS = 12e9  # bytes per second: PCI Express 3.0 x16, about three quarters of its 15.75 GB/s


class Model(NamedTuple):
    """A row group of the tables.

    Attributes:
        title: as the paper writes it.
        layers: list of InstantiableParams.
        spec: `tf.TensorSpec` of an input of one example.
    """

    title: str
    layers: list
    spec: tf.TensorSpec


def _amoebanet(reduction_size):
    return Model(f'AmoebaNet-D(18, {reduction_size})', amoebanet.amoebanet_layers(
        'D', 18, reduction_size, num_classes=1000),
                 tf.TensorSpec([1, 224, 224, 3]))


def _transformer(num_layers):
    layers = transformer.transformer_lm_layers(
        num_layers, vocab_size=32_000, model_dim=2048, hidden_dim=8192, num_heads=32)
    return Model(f'Transformer-{num_layers}', layers, tf.TensorSpec([1, 1024], tf.int32))


def throughputs(model, accelerator):
    """Plan a model for every K and M, with recomputation.

    Args:
        model: `Model`.
        accelerator: `Accelerator`; its memory does not limit the cut.

    Returns:
        Dictionary from (K, M) to examples per second.
    """
    spec = tf.TensorSpec([_BATCH_SIZE.value, *model.spec.shape[1:]], model.spec.dtype)
    stack = resolution.LayerStack(
        layer_sources.LayersOfParams(model.layers), spec, [_BATCH_SIZE.value // count for count in _COUNTS])
    setting = plans.Setting(stack, accelerator, None, 1)
    return {(k, m): plans.make_plan(setting, schedules.gpipe(k, m), 'stage').throughput for k in _PARTITIONS
            for m in _COUNTS}


# For each model and M, the published figures of K = 2, 4, 8, over that of K=2 and the smallest M.
_TABLE_2 = {'AmoebaNet-D(18, 256)': {1: (1, 1.13, 1.38), 4: (1.07, 1.26, 1.72), 32: (1.21, 1.84, 3.48)},
            'Transformer-48': {1: (1, 1.07, 1.3), 4: (1.7, 3.2, 4.8), 32: (1.8, 3.4, 6.3)}}
_TABLE_3 = {'AmoebaNet-D(18, 128)': {32: (1, 1.7, 2.7)}, 'Transformer-24': {32: (1, 1.8, 3.3)}}


def _rows(published, models, accelerator):
    rows = []
    for model in models:
        found, figures = throughputs(model, accelerator), published[model.title]
        unit = found[2, min(figures)]
        for count, row in figures.items():
            rows.append([model.title, accelerator.name, count, *(
                text for k, value in zip(_PARTITIONS, row) for text in (f'{value:g}', f'{found[k, count] / unit:.2f}'))])
    return rows


def main(unused_argv):
    p100 = accelerators.find('p100')._replace(link_bandwidth=_PCI_EXPRESS)
    header = ['model', 'accelerator', 'M', *(text for k in _PARTITIONS for text in (f'K={k} published', f'K={k}'))]
    rows = [*_rows(_TABLE_2, [_amoebanet(256), _transformer(48)], accelerators.find('v3')),
            *_rows(_TABLE_3, [_amoebanet(128), _transformer(24)], p100)]
    common.report(
        common.Table(header, rows),
        f'Table 2 on cores of a TPU v3, Table 3 on P100s over PCI Express. Throughput over that of K=2 with the smallest '
        f'M of the model. Batch {_BATCH_SIZE.value}, recompute=stage, float32.')


if __name__ == '__main__':
    app.run(main)
