"""Seconds to sum the gradients of ResNet-50: on virtual devices of this machine as measured, on TPUs by a model of their links.

    python benchmarks/gradient_summation.py --picture=docs/images/gradient_summation.png
    python benchmarks/gradient_summation.py --num_devices=                              # the model alone, which takes a second

Weights are spread over the devices as a pipeline spreads them, and the sum of each comes to the device that it lives on. All
virtual devices share this machine's memory and cores. The methods take turns. The model counts until all chips have all sums.
"""

import math
import pathlib
import statistics
import time

import common
import keras
import line_chart
import tensorflow as tf
from absl import app, flags

from lingpipe.distribute import gradient_sums, local_devices, variable_placement
from lingpipe.layers import resnet
from lingpipe.planner import accelerators, reduction_time

_NUM_DEVICES = flags.DEFINE_list('num_devices', ['2', '4', '8'], 'Numbers of virtual devices to measure with; empty for none.')
_METHODS = flags.DEFINE_list('methods', ['add', 'ring', 'two_dimensional'], "Values of GPipeLayer's field gradient_sum to measure.")
_DEPTH = flags.DEFINE_integer('depth', 50, 'Depth of the ResNet whose gradients are summed.')
_FILTERS = flags.DEFINE_integer('filters', 64, 'Filters of its first group.', lower_bound=1)
_NUM_ROUNDS = flags.DEFINE_integer('num_rounds', 9, 'Measured sums of each method, of which the median counts.', lower_bound=1)
_CHIPS = flags.DEFINE_list('chips', ['4', '16', '64', '256', '1024'], 'Numbers of chips for the model; squares.')
_ACCELERATOR = flags.DEFINE_string('accelerator', 'v3', "Name whose links the model has, as in --mode=plan's --accelerator.")
_HOP_MICROSECONDS = flags.DEFINE_float(
    'hop_microseconds', 1e6 * reduction_time.HOP_SECONDS, 'What a transfer to a neighbour takes besides its bytes.', lower_bound=0.0)
_MODEL_BYTES = flags.DEFINE_integer('model_bytes', 4 * 25_557_032, 'Bytes of the gradients for the model: ResNet-50 in float32.')
_PICTURE = flags.DEFINE_string('picture', None, "PNG file to draw the model's times into.")


def sums(num_devices):
    """Measures all methods in turns, after one sum of each that does not count.

    Args:
        num_devices: virtual devices, one a replica.

    Yields:
        Dictionary from method to seconds.
    """
    local_devices.use_virtual_devices(num_devices)
    devices = local_devices.stage_devices(num_devices, 'CPU')
    functions = {method: _sum_function(method, devices, *_gradients(devices)) for method in _METHODS.value}
    for function in functions.values():
        function()
    while True:
        yield {method: _seconds(function) for method, function in functions.items()}


def _gradients(devices):
    """Returns for each device the list of its gradients, and for each gradient the device where its weight lives."""
    image = keras.Input([32, 32, 3])
    with variable_placement.creating_on_one_of(devices):
        layers = [params.Instantiate() for params in resnet.resnet_layers(_DEPTH.value, filters=_FILTERS.value)]
        for layer in layers:
            image = layer(image)
    variables = [variable for layer in layers for variable in layer.trainable_variables]
    return ([_ones(device, variables) for device in devices],
            [variable_placement.owner(variable, devices) for variable in variables])


def _ones(device, variables):
    with tf.device(device):
        return [tf.ones(variable.shape) for variable in variables]


def _sum_function(method, devices, parts, owners):
    @tf.function(autograph=False)
    def run():
        totals = gradient_sums.GradientSum(method)(parts, devices, owners)
        # Fetching all of them would copy them; one number of each is enough to wait for.
        return [tf.reshape(total, [-1])[0] for total in totals]

    return run


def _seconds(function):
    start = time.perf_counter()
    for value in function():
        value.numpy()
    return time.perf_counter() - start


def measured_row(num_devices):
    """Returns a row of the table of what was measured: the devices, then milliseconds of each method."""
    with common.Process(sums, num_devices) as process:
        rounds = [process.next() for _ in range(_NUM_ROUNDS.value)]
    return [num_devices, *(f'{1000 * statistics.median(times[method] for times in rounds):.1f}' for method in _METHODS.value)]


def predictions():
    """Returns for each number of chips the pair of `Reduction`s, over one ring and over two dimensions.

    Raises:
        ValueError: a number is not a square.
    """
    bandwidth, latency = accelerators.find(_ACCELERATOR.value).link_bandwidth, _HOP_MICROSECONDS.value / 1e6
    pairs = {}
    for chips in map(int, _CHIPS.value):
        side = math.isqrt(chips)
        if side**2 != chips:
            raise ValueError(f'--chips has {chips}, which is no square: the model lays chips out as one. Give 4, 16, 36 and the like.')
        pairs[chips] = (reduction_time.ring(_MODEL_BYTES.value, chips, bandwidth, latency),
                        reduction_time.two_dimensional(_MODEL_BYTES.value, side, side, bandwidth, latency))
    return pairs


def _model_table(pairs):
    return common.markdown_table(
        ['chips', 'steps, ring', 'steps, 2-D', 'MB a link, ring', 'MB a link, 2-D', 'ms, ring', 'ms, 2-D', 'ring / 2-D'],
        [[f'{chips:,}', f'{ring.steps:,}', f'{square.steps:,}', f'{ring.bytes_per_link / 1e6:.1f}', f'{square.bytes_per_link / 1e6:.1f}',
          f'{1000 * ring.seconds:.2f}', f'{1000 * square.seconds:.2f}', f'{ring.seconds / square.seconds:.2f}']
         for chips, (ring, square) in pairs.items()])


def _draw(pairs):
    lines = {name: [1000 * pair[index].seconds for pair in pairs.values()] for index, name in enumerate(['ring', '2-D'])}
    pathlib.Path(_PICTURE.value).write_bytes(line_chart.png(
        lines, list(pairs), 'chips', f'milliseconds to sum {_MODEL_BYTES.value / 1e6:.0f} MB over the links of {_ACCELERATOR.value}'))


def main(unused_argv):
    pairs = predictions()
    if _PICTURE.value:
        _draw(pairs)
    paragraphs = [_model_table(pairs), f'By the model: {_MODEL_BYTES.value / 1e6:.1f} MB, links of {_ACCELERATOR.value}, '
                  f'{_HOP_MICROSECONDS.value:g} us a step.']
    if _NUM_DEVICES.value:
        rows = [measured_row(int(num_devices)) for num_devices in _NUM_DEVICES.value]
        paragraphs += [
            common.markdown_table(['virtual devices', *(f'{method}, ms' for method in _METHODS.value)], rows),
            f'Measured: gradients of ResNet-{_DEPTH.value} with {_FILTERS.value} filters in its first group; median of '
            f'{_NUM_ROUNDS.value} sums.']
    common.report(*paragraphs)


if __name__ == '__main__':
    app.run(main)
