"""What freezing saves: the step of a pipeline whose first partitions are not trained, against the step that trains all.

    python -m benchmarks.speed.fine_tuning --num_partitions=4 --num_trained=1,2,3,4

Frozen first partitions have no backward pass, and recompute nothing. Where forward takes 1, backward 2 and
recomputation 1 for each of K partitions, a step that trains the last T of them takes (K + 3 T) / 4 K of the full one:
0.44 for T = 1 of 4. All runs on one core, so that work is what is measured.
"""

import statistics
import time

import keras
import tensorflow as tf
from absl import app, flags

from benchmarks.support import common
from lingpipe.devices import device_kinds
from lingpipe.pipeline import gpipe_layer

_NUM_PARTITIONS = flags.DEFINE_integer('num_partitions', 4, 'K, with two layers in each.', lower_bound=1)
_NUM_TRAINED = flags.DEFINE_list('num_trained', ['1', '2', '3', '4'], 'How many of the last partitions are trained.')
_NUM_MICRO_BATCHES = flags.DEFINE_integer('num_micro_batches', 8, 'M.', lower_bound=1)
_UNITS = flags.DEFINE_integer('units', 512, 'Width of the dense layers.', lower_bound=1)
_BATCH_SIZE = flags.DEFINE_integer('batch_size', 512, 'Rows of a batch.', lower_bound=1)
_NUM_STEPS = flags.DEFINE_integer('num_steps', 20, 'Measured steps; the median counts.', lower_bound=1)


def measure(num_partitions, num_trained, num_micro_batches, units, batch_size, num_steps):
    """Runs in a process of its own, since nothing may be left from a pipeline built before.

    Yields:
        Milliseconds of a step.
    """
    device_kinds.use_virtual_devices(num_partitions)
    stack = [keras.layers.Dense(units, activation='gelu') for _ in range(2 * num_partitions)]
    model = keras.Sequential([keras.Input([units]), *stack])
    for layer in stack[:2 * (num_partitions - num_trained)]:
        layer.trainable = False
    pipe = gpipe_layer.GPipeLayer.from_keras(model, num_partitions=num_partitions, num_micro_batches=num_micro_batches)
    x = tf.random.stateless_normal([batch_size, units], [1, 2])
    loss, times = keras.losses.MeanSquaredError(), []
    for _ in range(num_steps + 3):
        start = time.perf_counter()
        float(pipe.value_and_grad(loss, x, x).loss)
        times.append(1000 * (time.perf_counter() - start))
    yield statistics.median(times[3:])


def main(unused_argv):
    sizes = (_NUM_MICRO_BATCHES.value, _UNITS.value, _BATCH_SIZE.value, _NUM_STEPS.value)
    times = {}
    for count in sorted({*map(int, _NUM_TRAINED.value), _NUM_PARTITIONS.value}):
        with common.Process(measure, _NUM_PARTITIONS.value, count, *sizes, num_cores=1) as process:
            times[count] = process.next()
    full = times[_NUM_PARTITIONS.value]
    rows = [[f'last {count} of {_NUM_PARTITIONS.value}', f'{milliseconds:.1f}', f'{milliseconds / full:.2f}']
            for count, milliseconds in times.items()]
    common.report(common.markdown_table(['trained partitions', 'ms a step', 'of the full step'], rows))


if __name__ == '__main__':
    app.run(main)
