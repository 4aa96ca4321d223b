"""Seconds to sum the gradients of ResNet-50: by a model of TPU links, and measured on virtual devices.

    python -m benchmarks.scaling.gradient_summation
    python -m benchmarks.scaling.gradient_summation --num_devices=  # the model alone, which takes a second

Virtual devices of one process share its memory and this machine's cores. Weights are spread over the devices as in a
pipeline, and each gradient sum ends on its weight's device. First each method's sums are compared with NumPy's; then
the methods take turns. The model's time ends when all chips have all sums.
"""

import math
import statistics
import time

import keras
import numpy as np
import tensorflow as tf
from absl import app, flags

from benchmarks.scaling import reduction_time
from benchmarks.support import common
from lingpipe.devices import collectives, device_kinds, variable_placement
from lingpipe.layers import resnet
from lingpipe.partition import accelerators

_NUM_DEVICES = flags.DEFINE_list(
    'num_devices', ['2', '4', '8'], 'Numbers of virtual devices to measure with; empty for none.')
_METHODS = flags.DEFINE_list(
    'methods', ['add', 'ring', 'two_dimensional'], "Values of GPipeLayer's field gradient_sum to measure.")
_DEPTH = flags.DEFINE_integer('depth', 50, 'Depth of the ResNet whose gradients are summed.')
_FILTERS = flags.DEFINE_integer('filters', 64, 'Filters of its first group.', lower_bound=1)
_NUM_ROUNDS = flags.DEFINE_integer(
    'num_rounds', 9, 'Measured sums of each method, of which the median counts.', lower_bound=1)
_CHIPS = flags.DEFINE_list('chips', ['4', '16', '64', '256', '1024'], 'Numbers of chips for the model; squares.')
_ACCELERATOR = flags.DEFINE_string(
    'accelerator', 'v3', "Name whose links the model has, as in --mode=plan's --accelerator.")
_HOP_MICROSECONDS = flags.DEFINE_float(
    'hop_microseconds', 1e6 * reduction_time.HOP_SECONDS, 'What a transfer to a neighbour takes besides its bytes.',
    lower_bound=0.0)
_MODEL_BYTES = flags.DEFINE_integer(
    'model_bytes', 4 * 25_557_032, 'Bytes of the gradients for the model: ResNet-50 in float32.')

_ROUNDING = 1e-6  # of the largest value of a sum, for each replica


def sums(num_devices):
    """Measure the methods in turns, after one sum of each that is checked and does not count.

    Args:
        num_devices: virtual devices, one per replica.

    Yields:
        Dictionary from method to seconds.
    """
    device_kinds.use_virtual_devices(num_devices)
    devices = device_kinds.stage_devices(num_devices, 'CPU')
    parts, owners = _gradients(devices)
    expected = [np.sum([part.numpy() for part in replicas], axis=0, dtype='float64') for replicas in zip(*parts)]
    functions = {method: _sum_function(method, devices, parts, owners) for method in _METHODS.value}
    for method, function in functions.items():
        _check(method, _totals(method, devices, parts, owners), expected, len(devices))
        function()
    while True:
        yield {method: _seconds(function) for method, function in functions.items()}


def _check(method, totals, expected, num_replicas):
    for total, right in zip(totals, expected):
        error = np.abs(total.numpy() - right).max() / np.abs(right).max()
        if error > _ROUNDING * num_replicas:
            raise AssertionError(f'{method}: a sum of shape {right.shape} is off by {error:.1e} of its largest value.')


def _gradients(devices):
    """Return for each device the list of its gradients, and for each gradient the device where its weight lives."""
    image = keras.Input([32, 32, 3])
    with variable_placement.creating_on_one_of(devices):
        layers = [params.Instantiate() for params in resnet.resnet_layers(_DEPTH.value, filters=_FILTERS.value)]
        for layer in layers:
            image = layer(image)
    variables = [variable for layer in layers for variable in layer.trainable_variables]
    return ([_random(device, replica, variables) for replica, device in enumerate(devices)],
            [variable_placement.owner(variable, devices) for variable in variables])


def _random(device, replica, variables):
    with tf.device(device):
        return [
            tf.random.stateless_normal(variable.shape, [replica, number]) for number, variable in enumerate(variables)]


def _totals(method, devices, parts, owners):
    return tf.function(lambda: collectives.gradient_sums(method, parts, devices, owners), autograph=False)()


def _sum_function(method, devices, parts, owners):
    @tf.function(autograph=False)
    def run():
        totals = collectives.gradient_sums(method, parts, devices, owners)
        # Fetching all of them would copy them; one number of each is enough to wait for.
        return [_first_numbers(owner, [total for total, own in zip(totals, owners) if own == owner])
                for owner in set(owners)]

    return run


def _first_numbers(device, tensors):
    with tf.device(device):
        return tf.stack([tf.reshape(tensor, [-1])[0] for tensor in tensors])


def _seconds(function):
    start = time.perf_counter()
    for value in function():
        value.numpy()
    return time.perf_counter() - start


def _measured_row(num_devices):
    with common.Process(sums, num_devices) as process:
        rounds = [process.next() for _ in range(_NUM_ROUNDS.value)]
    return [num_devices, *(
        f'{1000 * statistics.median(times[method] for times in rounds):.1f}' for method in _METHODS.value)]


def predictions():
    """Return for each number of chips the pair of `Reduction`s, over one ring and over two dimensions.

    Raises:
        ValueError: a number is not a square.
    """
    bandwidth, latency = accelerators.find(_ACCELERATOR.value).link_bandwidth, _HOP_MICROSECONDS.value / 1e6
    pairs = {}
    for chips in map(int, _CHIPS.value):
        side = math.isqrt(chips)
        if side**2 != chips:
            raise ValueError(f'--chips has {chips}, which is no square: the model lays chips out as one. Give 4, 16, '
                             '36 and the like.')
        pairs[chips] = (reduction_time.ring(_MODEL_BYTES.value, chips, bandwidth, latency),
                        reduction_time.two_dimensional(_MODEL_BYTES.value, side, side, bandwidth, latency))
    return pairs


def _predicted_row(chips, ring, square):
    return [f'{chips:,}', f'{ring.steps:,}', f'{square.steps:,}', f'{ring.bytes_per_link / 1e6:.1f}',
            f'{square.bytes_per_link / 1e6:.1f}', f'{1000 * ring.seconds:.2f}', f'{1000 * square.seconds:.2f}',
            f'{ring.seconds / square.seconds:.2f}']


def main(unused_argv):
    header = ['chips', 'steps, ring', 'steps, 2-D', 'MB per link, ring', 'MB per link, 2-D', 'ms, ring', 'ms, 2-D',
              'ring / 2-D']
    report = [common.Table(header, [_predicted_row(chips, *pair) for chips, pair in predictions().items()]),
              f'By the model: {_MODEL_BYTES.value / 1e6:.1f} MB, links of {_ACCELERATOR.value}, '
              f'{_HOP_MICROSECONDS.value:g} us a step.']
    if _NUM_DEVICES.value:
        report += [common.Table(['virtual devices', *(f'{method}, ms' for method in _METHODS.value)],
                                [_measured_row(int(count)) for count in _NUM_DEVICES.value]),
                   f'Measured: gradients of ResNet-{_DEPTH.value} with {_FILTERS.value} filters in its first group; '
                   f'median of {_NUM_ROUNDS.value} sums.']
    common.report(*report)


if __name__ == '__main__':
    app.run(main)
