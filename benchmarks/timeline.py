"""Draws one real step of a pipeline: when each device began and ended each action, stamped inside the graph.

    python benchmarks/timeline.py --num_partitions=3 --num_micro_batches=6
"""

import time

import common
import keras
import tensorflow as tf
from absl import app, flags

from lingpipe.distribute import local_devices
from lingpipe.layers import keras_params
from lingpipe.pipeline import gpipe_layer
from lingpipe.pipeline import schedule as schedules

_NUM_PARTITIONS = flags.DEFINE_integer('num_partitions', 3, 'Partitions K, each on a virtual CPU device.', lower_bound=1)
_NUM_MICRO_BATCHES = flags.DEFINE_integer('num_micro_batches', 6, 'Micro-batches M in the step.', lower_bound=1)
_RECOMPUTE = flags.DEFINE_enum('recompute', 'stage', ['none', 'stage'], "GPipeLayer's field.")
_LAYER = flags.DEFINE_enum(
    'layer', 'dense', ['dense', 'wait'],
    "What a partition is made of: 'dense' layers, whose devices share the processor's cores, or one that only waits, as a "
    'host does while its accelerators compute: forward --milliseconds, backward twice as long.')
_MILLISECONDS = flags.DEFINE_float('milliseconds', 10.0, 'Forward time of a waiting layer.', lower_bound=0.0)
_UNITS = flags.DEFINE_integer('units', 1024, 'Units of a dense layer.', lower_bound=1)
_ROWS = flags.DEFINE_integer('rows', 128, 'Rows of a micro-batch.', lower_bound=1)
_COLUMNS = flags.DEFINE_integer('columns', 100, 'Width of the drawing in characters.', lower_bound=1)

_DENSE_LAYERS_PER_PARTITION = 4


class Wait(keras.layers.Layer):
    """Passes its input on after a while, and the gradient after twice as long.

    Sleeping is stateful, and what is stateful is never recomputed: its B takes as long with recomputation as without.
    """

    def __init__(self, milliseconds, **kwargs):
        super().__init__(**kwargs)
        self.milliseconds = milliseconds

    def build(self, input_shape):
        self.scale = self.add_weight(shape=(), initializer='ones', name='scale')

    def call(self, inputs):
        seconds = self.milliseconds / 1000

        @tf.custom_gradient
        def wait(x):
            return _sleep(x, seconds), lambda gradient: _sleep(gradient, 2 * seconds)

        return wait(inputs * self.scale)

    def compute_output_shape(self, input_shape):
        return input_shape


def _sleep(x, seconds):
    def sleep(value):
        time.sleep(seconds)
        return value

    return tf.ensure_shape(tf.numpy_function(sleep, [x], x.dtype), x.shape)


class Stamps:
    """Records when the actions of a pipeline begin and end.

    A stamp is one more operation on the action's device, between the previous action there and this one, or between this
    one and the next. The stamp function is called statelessly: TensorFlow would run stateful operations such as
    `tf.timestamp` in program order, one device after the other.

    Args:
        pipe: built `GPipeLayer` that no step has been traced for.
    """

    def __init__(self, pipe):
        self._actions = {stage.index: iter(actions) for stage, actions in zip(pipe.stages, pipe.schedule.device_actions)}
        self._times = {}
        self._function = tf.function(
            lambda after: tf.timestamp() + 0.0 * after, autograph=False,
            experimental_attributes={'_noinline': True}).get_concrete_function(tf.TensorSpec([], tf.float64))
        for stage in pipe.stages:
            self._stamp_programs(stage)

    def times(self):
        """Returns, in the step being traced, `{'F0,1': float64 [2]}`: begin and end of each action in seconds."""
        return {str(action): tf.stack(times) for action, times in self._times.items()}

    def _stamp_programs(self, stage):
        make_program = stage.program
        stage.program = lambda *arguments: _StampedProgram(make_program(*arguments), stage.index, self)

    def around(self, stage_index, tensors, lay_out):
        """Lays out an action between two stamps.

        Args:
            stage_index: index of the action's stage.
            tensors: what the action waits for, besides the previous action on its device.
            lay_out: function that lays the action out and returns its operation last.

        Returns:
            List of what `lay_out` returns, with the operation replaced by the second stamp.
        """
        begin = self._stamp(tf.nest.flatten(tensors)[0])
        with tf.control_dependencies([begin]):
            *results, operation = lay_out()
        end = self._stamp(operation.outputs[0])
        self._times[next(self._actions[stage_index])] = begin, end
        return [*results, end.op]

    def _stamp(self, tensor):
        scalar = tf.cast(tf.reshape(tensor, [-1])[0], tf.float64)
        return tf.raw_ops.PartitionedCall(args=[scalar], Tout=[tf.float64], f=self._function)[0]


class _StampedProgram:
    """A `StageProgram` with stamps around its actions."""

    def __init__(self, program, stage_index, stamps):
        self._program, self._stage_index, self._stamps = program, stage_index, stamps

    def forward(self, arguments, keep_residuals):
        def lay_out():
            results = self._program.forward(arguments, keep_residuals)
            return results, results['operation']

        results, operation = self._stamps.around(self._stage_index, arguments['inputs'], lay_out)
        return dict(results, operation=operation)

    def backward(self, arguments, residuals, output_gradients, sums, input_gradients_needed):
        return self._stamps.around(
            self._stage_index, output_gradients, lambda: self._program.backward(
                arguments, residuals, output_gradients, sums, input_gradients_needed))


def _build_pipe():
    dense = keras_params.KerasParams(keras.layers.Dense, units=_UNITS.value, activation='relu')
    wait = keras_params.KerasParams(Wait, milliseconds=_MILLISECONDS.value)
    layers = {'dense': [dense] * _DENSE_LAYERS_PER_PARTITION, 'wait': [wait]}[_LAYER.value]
    ends = [len(layers) * (index + 1) for index in range(_NUM_PARTITIONS.value)]
    pipe = gpipe_layer.GPipeLayer.Params().Set(
        name='pipe', layers=layers * _NUM_PARTITIONS.value, num_partitions=_NUM_PARTITIONS.value, partition_by=ends,
        num_micro_batches=_NUM_MICRO_BATCHES.value, recompute=_RECOMPUTE.value).Instantiate()
    pipe.build((None, _UNITS.value))
    return pipe


def measure_step():
    """Runs a pipeline.

    Returns:
        Dictionary from `Action` to (begin, end) in seconds after the first begin, of the fastest of a few steps.
    """
    pipe = _build_pipe()
    stamps = Stamps(pipe)

    @tf.function(autograph=False)
    def step(x):
        result = pipe.value_and_grad(lambda targets, outputs: tf.reduce_mean(tf.square(outputs - targets)), x, x)
        return result.gradients, stamps.times()

    x = tf.random.stateless_normal([_ROWS.value * _NUM_MICRO_BATCHES.value, _UNITS.value], [1, 2])
    runs = [tf.nest.map_structure(lambda tensor: tensor.numpy(), step(x)[1]) for _ in range(6)][1:]
    start = {id(run): min(begin for begin, _ in run.values()) for run in runs}
    fastest = min(runs, key=lambda run: max(end for _, end in run.values()) - start[id(run)])
    return {action: tuple(fastest[str(action)] - start[id(fastest)])
            for actions in pipe.schedule.device_actions for action in actions}


def draw(times, num_columns):
    """Draws one row for each device: 'F' or 'B' with the micro-batch where an action begins, '-' to its end, '.' idle.

    Args:
        times: dictionary from `Action` to (begin, end) in seconds.
        num_columns: number of characters for the whole step.
    """
    step = max(end for _, end in times.values())
    rows = {}
    for action, (begin, end) in sorted(times.items(), key=lambda item: item[1]):
        row = rows.setdefault(action.stage, ['.'] * num_columns)
        first, last = (round(moment / step * num_columns) for moment in (begin, end))
        label = f'{action.kind}{action.micro_batch}'.ljust(last - first, '-')
        row[first:last] = label[:last - first]
    return '\n'.join(f'device {stage}  {"".join(row)}' for stage, row in sorted(rows.items()))


def _busy_table(times):
    step = max(end for _, end in times.values())
    rows = []
    for stage in range(_NUM_PARTITIONS.value):
        mean = {kind: _mean_milliseconds(times, stage, kind) for kind in (schedules.FORWARD, schedules.BACKWARD)}
        busy = sum(end - begin for action, (begin, end) in times.items() if action.stage == stage)
        rows.append([stage, f'{mean["F"]:.1f}', f'{mean["B"]:.1f}', f'{busy / step:.0%}'])
    return common.markdown_table(['device', 'F ms', 'B ms', 'busy'], rows)


def _mean_milliseconds(times, stage, kind):
    seconds = [end - begin for action, (begin, end) in times.items() if (action.stage, action.kind) == (stage, kind)]
    return sum(seconds) / len(seconds) * 1000


def main(unused_argv):
    num_partitions, num_micro_batches = _NUM_PARTITIONS.value, _NUM_MICRO_BATCHES.value
    local_devices.use_virtual_devices(num_partitions)
    times = measure_step()
    step = max(end for _, end in times.values())
    possible = num_micro_batches / (num_micro_batches + num_partitions - 1)
    common.report(
        f'One step of {step * 1000:.0f} ms, {num_partitions} partitions, {num_micro_batches} micro-batches, '
        f"recompute='{_RECOMPUTE.value}':",
        f'```\n{draw(times, _COLUMNS.value)}\n```', _busy_table(times),
        f'With equal partitions the schedule lets a device be busy {possible:.0%} of the step.')


if __name__ == '__main__':
    app.run(main)
