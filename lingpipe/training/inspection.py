"""What a model consists of and where its parts go, told before anything is allocated."""

import tensorflow as tf

from lingpipe.pipeline import analysis, partition_table
from lingpipe.training import tables


def model_analysis(body_params, input_shape, devices):
    """Describes every layer and every partition without allocating a weight.

    Args:
        body_params: `GPipeLayer.Params()`.
        input_shape: shape `[batch, ...]` of the input.
        devices: list of device names, one a partition.

    Returns:
        Text with a table of layers and a table of partitions.
    """
    layer_params = analysis.named_layer_params(body_params.layers)
    layers = analysis.analyse_layers(layer_params, tf.TensorSpec(input_shape, tf.float32))
    ends = partition_table.partition_ends(layers, body_params.num_partitions, body_params.partition_by)
    return describe(layers, partition_table.describe_partitions(layers, ends, devices))


def describe(layers, partitions):
    """Describes analysed layers and their partitions.

    Args:
        layers: list of `LayerAnalysis`.
        partitions: list of `Partition`.

    Returns:
        Text with a table of layers and a table of partitions.
    """
    place = {name: (index, part.device) for index, part in enumerate(partitions) for name in part.layer_names}
    rows = [[layer.name, layer.kind, _shapes(layer.outputs), layer.num_parameters, layer.flops.total / 1e6,
             place[layer.name][0], short_device(place[layer.name][1])] for layer in layers]
    num_parameters = sum(layer.num_parameters for layer in layers)
    gflops = sum(layer.flops.total for layer in layers) / 1e9
    header = ['layer', 'kind', 'output of one example', 'parameters', 'MFLOPs', 'partition', 'device']
    return '\n\n'.join([
        tables.table(header, rows), partition_summary(partitions),
        f'{num_parameters:,} parameters, {gflops:,.3f} GFLOPs an example (forward)'])


def partition_summary(partitions):
    """Returns a table with one row a partition: what was split where.

    Args:
        partitions: list of `Partition`.
    """
    mean = sum(part.flops for part in partitions) / len(partitions)
    rows = [[index, short_device(part.device), _span(part.layer_names), len(part.layer_names), part.num_parameters,
             part.flops / 1e6, f'{part.flops / mean:.2f}' if mean else '-'] for index, part in enumerate(partitions)]
    return tables.table(['partition', 'device', 'from .. to', 'layers', 'parameters', 'MFLOPs', 'of mean'], rows)


def short_device(device):
    """Returns 'CPU:1' for '/job:localhost/replica:0/task:0/device:CPU:1', and keeps what else matters."""
    return device.replace('/job:localhost/replica:0/task:0', '').replace('/device:', '/').lstrip('/')


def _span(names):
    return names[0] if len(names) == 1 else f'{names[0]} .. {names[-1]}'


def _shapes(outputs):
    return ', '.join(str(tuple(spec.shape[1:])) for spec in tf.nest.flatten(outputs))
