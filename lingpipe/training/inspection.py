"""What a model consists of and where its parts go, told before anything is allocated."""

import re

import tensorflow as tf

from lingpipe import text_tables
from lingpipe.partition import balancing
from lingpipe.pipeline import layer_sources, validation

_UNMEASURED = (
    "partition_by='time' measures the layers when a training starts. Nothing was measured here: the cut above is that of "
    "partition_by='flops'.")


def model_analysis(body_params, input_spec, devices):
    """Describes every layer and every partition without allocating a weight or running a layer.

    Args:
        body_params: `GPipeLayer.Params()`.
        input_spec: nest of `tf.TensorSpec` `[batch, ...]` of the input.
        devices: list of device names, one a partition.

    Returns:
        Text with a table of layers and a table of partitions.
    """
    by_time = body_params.partition_by == 'time'
    p = body_params.Copy().Set(partition_by='flops') if by_time else body_params
    schedule = validation.make_schedule(p)
    source = layer_sources.LayersOfParams(p.layers)
    layers = source.analyses(input_spec)
    cut = balancing.cut(p, schedule, source, layers, input_spec, devices[0])
    devices = [devices[schedule.device_of(stage)] for stage in range(schedule.num_stages)]
    return describe(layers, cut.describe(layers, devices)) + ('\n\n' + _UNMEASURED if by_time else '')


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
        text_tables.table(header, rows), partition_summary(partitions),
        f'{num_parameters:,} parameters, {gflops:,.3f} GFLOPs an example (forward)'])


def partition_summary(partitions):
    """Returns a table with one row a partition: what was split where.

    Args:
        partitions: list of `Partition`.
    """
    columns = [
        ('partition', range(len(partitions))),
        ('device', [short_device(part.device) for part in partitions]),
        ('from .. to', [_span(part.layer_names) for part in partitions]),
        ('layers', [len(part.layer_names) for part in partitions]),
        ('parameters', [part.num_parameters for part in partitions]),
        *_cost_columns('MFLOPs', [part.flops / 1e6 for part in partitions])]
    if partitions[0].seconds is not None:
        columns += _cost_columns('ms a micro-batch', [1e3 * part.seconds for part in partitions])
    if partitions[0].memory is not None:
        columns.append(('MB by estimate', [part.memory / 1e6 for part in partitions]))
    titles, values = zip(*columns)
    return text_tables.table(list(titles), list(map(list, zip(*values))))


def _cost_columns(title, costs):
    mean = sum(costs) / len(costs)
    return [(title, costs), ('of mean', [f'{cost / mean:.2f}' if mean else '-' for cost in costs])]


def short_device(device):
    """Returns 'CPU:1' for a device of this machine, 'worker:0/CPU:1' for one of a cluster's worker."""
    here = re.sub('^/job:(localhost|chief)/replica:0/task:0', '', device)
    return re.sub(r'^/job:(\w+)/replica:0/task:(\d+)', r'\1:\2', here).replace('/device:', '/').lstrip('/')


def _span(names):
    return names[0] if len(names) == 1 else f'{names[0]} .. {names[-1]}'


def _shapes(outputs):
    return ', '.join(str(tuple(spec.shape[1:])) for spec in tf.nest.flatten(outputs))
