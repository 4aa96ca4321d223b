"""How evenly the partitioners that are in the open cut GPipe's AmoebaNet-D(18, 256), by floating-point operations.

    python -m benchmarks.speed.gpipe_cuts

GPipe (arXiv 1811.06965, section 2.1) minimises the variance of estimated costs and does not say how.
`partition_quality.py` has the rules, and compares them on measured times.
"""

import tensorflow as tf
from absl import app

from benchmarks.speed import partition_quality
from benchmarks.support import common
from lingpipe.layers import amoebanet
from lingpipe.partition import layer_analysis

_PARTITIONS = (2, 4, 8)


def cut_row(costs, parameters, num_partitions):
    """Returns a row of the table.

    Args:
        costs: list of the costs of all layers.
        parameters: list of their numbers of parameters.
        num_partitions: K.

    Returns:
        List of K; for each rule the heaviest partition over the mean of all, and layers in each partition; millions of
        parameters in each partition of the exact cut.
    """
    cells = [num_partitions]
    for rule in partition_quality.RULES.values():
        ends = rule(costs, num_partitions)
        cells += [
            f'{num_partitions * max(_sums(costs, ends)) / sum(costs):.3f}', _join(_sums([1] * len(costs), ends), '{}')]
    exact = partition_quality.exact_ends(costs, num_partitions)
    return [*cells, _join([count / 1e6 for count in _sums(parameters, exact)], '{:.1f}')]


def _sums(values, ends):
    return [sum(values[start:end]) for start, end in zip([0, *ends], ends)]


def _join(values, form):
    return ' '.join(map(form.format, values))


def main(unused_argv):
    layers = layer_analysis.named_layer_params(amoebanet.amoebanet_layers('D', 18, 256, num_classes=1000))
    found = layer_analysis.analyse_layers(layers, tf.TensorSpec([1, 224, 224, 3]))
    costs, parameters = [layer.flops.total for layer in found], [layer.num_parameters for layer in found]
    header = ['K', *(
        text for rule in partition_quality.RULES for text in (f'{rule}: heaviest / mean', f'{rule}: layers')),
              'exact: M parameters']
    common.report(
        common.markdown_table(header, [cut_row(costs, parameters, count) for count in _PARTITIONS]),
        'GFLOP of the layers, forward, one image: ' + _join([cost / 1e9 for cost in costs], '{:.2f}') + '.')


if __name__ == '__main__':
    app.run(main)
