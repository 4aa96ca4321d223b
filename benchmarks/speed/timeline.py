"""Draws one real step of a pipeline: when each device began and ended each action, stamped inside the graph.

    python -m benchmarks.speed.timeline --num_partitions=3 --num_micro_batches=6
    python -m benchmarks.speed.timeline --layer=wait --schedule=1f1b --num_replicas=2 --picture=timeline.png
"""

import pathlib
import statistics

import keras
import tensorflow as tf
from absl import app, flags

from benchmarks.speed import wait_layer
from benchmarks.support import common
from lingpipe import schedules
from lingpipe.devices import device_kinds
from lingpipe.layers import keras_params
from lingpipe.pipeline import gpipe_layer
from lingpipe.schedules import timeline
from lingpipe.tools.trace import action_times, trace, trace_picture

_NUM_PARTITIONS = flags.DEFINE_integer(
    'num_partitions', 3, 'Partitions K, each on a virtual CPU device.', lower_bound=1)
_NUM_REPLICAS = flags.DEFINE_integer('num_replicas', 1, 'Pipelines R side by side.', lower_bound=1)
_NUM_MICRO_BATCHES = flags.DEFINE_integer(
    'num_micro_batches', 6, 'Micro-batches M of a pipeline in the step.', lower_bound=1)
_SCHEDULE = flags.DEFINE_enum(
    'schedule', 'gpipe', sorted(schedules.SCHEDULES.keys() - {'interleaved_1f1b'}), "GPipeLayer's field.")
_RECOMPUTE = flags.DEFINE_enum('recompute', 'stage', ['none', 'stage'], "GPipeLayer's field.")
_LAYER = flags.DEFINE_enum(
    'layer', 'dense', ['dense', 'wait'],
    "What a partition is made of: 'dense' layers, whose devices share the processor's cores, or one that only waits, "
    "as a "
    'host does while its accelerators compute: forward --milliseconds, backward twice as long.')
_MILLISECONDS = flags.DEFINE_float('milliseconds', 10.0, 'Forward time of a waiting layer.', lower_bound=0.0)
_UNITS = flags.DEFINE_integer('units', 1024, 'Units of a dense layer.', lower_bound=1)
_ROWS = flags.DEFINE_integer('rows', 128, 'Rows of a micro-batch.', lower_bound=1)
_PICTURE = flags.DEFINE_string('picture', None, 'PNG file to draw the step into, with the simulated one beneath it.')
_COLUMNS = flags.DEFINE_integer('columns', 100, 'Width of the drawing in characters.', lower_bound=1)

_DENSE_LAYERS_PER_PARTITION = 4


def _build_pipe():
    dense = keras_params.KerasParams(keras.layers.Dense, units=_UNITS.value, activation='relu')
    wait = keras_params.KerasParams(wait_layer.Wait, milliseconds=_MILLISECONDS.value)
    layers = {'dense': [dense] * _DENSE_LAYERS_PER_PARTITION, 'wait': [wait]}[_LAYER.value]
    ends = [len(layers) * (index + 1) for index in range(_NUM_PARTITIONS.value)]
    pipe = gpipe_layer.GPipeLayer.Params().Set(
        name='pipe', layers=layers * _NUM_PARTITIONS.value, num_partitions=_NUM_PARTITIONS.value, partition_by=ends,
        num_micro_batches=_NUM_MICRO_BATCHES.value, num_replicas=_NUM_REPLICAS.value, recompute=_RECOMPUTE.value,
        schedule=_SCHEDULE.value).Instantiate()
    pipe.build((None, _UNITS.value))
    return pipe


def measure_step(pipe):
    """Runs a pipeline.

    Returns:
        `StepTimes` of the fastest of a few steps.
    """
    pipe.observer = action_times.ActionTimes()

    @tf.function(autograph=False)
    def step(x):
        result = pipe.value_and_grad(lambda targets, outputs: tf.reduce_mean(tf.square(outputs - targets)), x, x)
        return result.gradients, pipe.observer.stamps()

    x = tf.random.stateless_normal([_batch_size(), _UNITS.value], [1, 2])
    runs = [pipe.observer.spans(pipe.schedule, step(x)[1].numpy()) for _ in range(6)][1:]
    return min((timeline.StepTimes(pipe.schedule, spans, num_replicas=_NUM_REPLICAS.value) for spans in runs),
               key=lambda step: step.seconds)


def _batch_size():
    return _ROWS.value * _NUM_MICRO_BATCHES.value * _NUM_REPLICAS.value


def _busy_table(step):
    rows = []
    for device, busy in enumerate(step.timeline.busy_times):
        means = [_mean_milliseconds(step, device, kind) for kind in (*timeline.COMPUTE, timeline.RECOMPUTE)]
        rows.append([device, *means, f'{busy / step.seconds:.0%}'])
    return common.markdown_table(['device', 'F ms', 'B ms', 'W ms', 'recompute ms', 'busy'], rows)


def _mean_milliseconds(step, device, kind):
    seconds = [span.end - span.start for span in step.spans if (span.device, span.action.kind) == (device, kind)]
    return f'{statistics.fmean(seconds) * 1000:.1f}' if seconds else ''


def _draw_picture(pipe, step):
    panels = {'measured': step, 'simulated on the mean times': trace.simulated([step])}
    path = pathlib.Path(_PICTURE.value)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(trace_picture.png(panels, trace.row_names(pipe)))


def main(unused_argv):
    device_kinds.use_virtual_devices(_NUM_REPLICAS.value * _NUM_PARTITIONS.value)
    pipe = _build_pipe()
    step = measure_step(pipe)
    if _PICTURE.value:
        _draw_picture(pipe, step)
    possible = 1 - pipe.schedule.simulate().bubble_fraction
    common.report(
        f'One step of {step.seconds * 1000:.0f} ms, {_NUM_REPLICAS.value} x {_NUM_PARTITIONS.value} partitions, '
        f'{_NUM_MICRO_BATCHES.value} micro-batches each, '
        f"schedule='{_SCHEDULE.value}', recompute='{_RECOMPUTE.value}':",
        f'```\n{step.timeline.draw(_COLUMNS.value)}\n```', _busy_table(step),
        trace.report([step], _batch_size()),
        f'With equal partitions the schedule lets a device be busy {possible:.0%} of the step.')


if __name__ == '__main__':
    app.run(main)
