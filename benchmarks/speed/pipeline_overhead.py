"""What a pipeline costs when the layers cost nothing: seconds to build it, microseconds for each action.

    python -m benchmarks.speed.pipeline_overhead --num_partitions=2,4,8 --num_micro_batches=4,16,64

As in `run.py`, TensorFlow does not optimise the graph around the stages, only the stages.
"""

import statistics
import time

import keras
import tensorflow as tf
from absl import app, flags

from benchmarks.support import common
from lingpipe.devices import device_kinds
from lingpipe.layers import keras_params
from lingpipe.pipeline import gpipe_layer

_NUM_PARTITIONS = flags.DEFINE_list('num_partitions', ['2', '4', '8'], 'Numbers of partitions K, one layer in each.')
_NUM_MICRO_BATCHES = flags.DEFINE_list('num_micro_batches', ['4', '16', '64'], 'Numbers of micro-batches M.')
_RECOMPUTE = flags.DEFINE_enum('recompute', 'stage', ['none', 'stage'], "GPipeLayer's field.")
_NUM_STEPS = flags.DEFINE_integer('num_steps', 30, 'Measured steps; the median counts.', lower_bound=1)

_UNITS = 8
_ROWS_PER_MICRO_BATCH = 4
_GOAL_SHAPE = (16, 256)
_GOAL_BUILD_SECONDS = 20
_GOAL_MICROSECONDS = 10


def measure(num_partitions, num_micro_batches):
    """Runs in a process of its own, since nothing may be left from a pipeline built before.

    Yields:
        Seconds to build, of a step, and of a step of the same layers without a pipeline.
    """
    device_kinds.use_virtual_devices(num_partitions)
    device_kinds.configure_graph_optimizer()
    x = tf.random.stateless_normal([num_micro_batches * _ROWS_PER_MICRO_BATCH, _UNITS], [1, 2])
    start = time.perf_counter()
    step = _pipeline_step(num_partitions, num_micro_batches, x)
    step(x)
    build = time.perf_counter() - start
    yield build, _median_seconds(step, x), _median_seconds(_plain_step(num_partitions), x)


def _pipeline_step(num_partitions, num_micro_batches, x):
    dense = keras_params.KerasParams(keras.layers.Dense, units=_UNITS)
    pipe = gpipe_layer.GPipeLayer.Params().Set(
        name='pipe', layers=[dense] * num_partitions, num_partitions=num_partitions,
        num_micro_batches=num_micro_batches, recompute=_RECOMPUTE.value).Instantiate()
    pipe.build(x.shape)

    @tf.function(autograph=False)
    def step(x):
        result = pipe.value_and_grad(_mean_square, x, x)
        return result.loss, result.gradients

    return step


def _plain_step(num_layers):
    layers = [keras.layers.Dense(_UNITS) for _ in range(num_layers)]
    for layer in layers:
        layer.build((None, _UNITS))
    weights = [weight.value for layer in layers for weight in layer.trainable_variables]

    @tf.function(autograph=False)
    def step(x):
        with tf.GradientTape() as tape:
            outputs = x
            for layer in layers:
                outputs = layer(outputs)
            loss = _mean_square(x, outputs)
        return loss, tape.gradient(loss, weights)

    return step


def _mean_square(targets, outputs):
    return tf.reduce_mean(tf.square(outputs - targets))


def _median_seconds(step, x):
    step(x)
    seconds = []
    for _ in range(_NUM_STEPS.value):
        start = time.perf_counter()
        step(x)[0].numpy()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def _goal(measured):
    goal = (f'Goal at K={_GOAL_SHAPE[0]}, M={_GOAL_SHAPE[1]}: built in {_GOAL_BUILD_SECONDS} s, '
            f'{_GOAL_MICROSECONDS} µs an action, or less')
    if _GOAL_SHAPE not in measured:
        return f'{goal}: not measured.'
    build, microseconds = measured[_GOAL_SHAPE]
    reached = build <= _GOAL_BUILD_SECONDS and microseconds <= _GOAL_MICROSECONDS
    return f'{goal}: {"reached" if reached else "missed"} with {build:.1f} s and {microseconds:.1f} µs.'


def main(unused_argv):
    rows, measured = [], {}
    for num_partitions in map(int, _NUM_PARTITIONS.value):
        for num_micro_batches in map(int, _NUM_MICRO_BATCHES.value):
            with common.Process(measure, num_partitions, num_micro_batches) as process:
                build, step, plain = process.next()
            num_actions = 2 * num_partitions * num_micro_batches
            microseconds = (step - plain) / num_actions * 1e6
            measured[num_partitions, num_micro_batches] = build, microseconds
            rows.append([num_partitions, num_micro_batches, num_actions, f'{build:.2f}', f'{step * 1e3:.2f}',
                         f'{plain * 1e3:.2f}', f'{microseconds:.1f}'])
    header = ['K', 'M', 'actions', 'build s', 'step ms', 'plain step ms', 'overhead µs an action']
    common.report(common.markdown_table(header, rows), _goal(measured))


if __name__ == '__main__':
    app.run(main)
