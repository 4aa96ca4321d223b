"""Synchronous against asynchronous training of one to four workers, and with one of them slow: throughput, and loss
against time.

    python -m benchmarks.scaling.sync_vs_async --speed_up_picture=docs/images/sync_vs_async_speed_up.png \\
        --loss_picture=docs/images/sync_vs_async_loss.png

Linear regression, whose step takes the time of a pause, as if an accelerator computed it: so four workers fit on two
cores. Each worker gets --rows examples a step, so that the batch of a synchronous step grows with the workers. Three
ways to train:

    in_graph    one program of the chief drives a replica on each worker; weights on the chief, synchronous
    sync        between graphs: the chief sends shares of a batch to workers; weights on one parameter server
    async       between graphs: each worker applies its gradients on the server at once

Every training has processes of its own, one after the other, and runs for --seconds after its first steps.
"""

import itertools
import pathlib
import time

import keras
import numpy as np
import tensorflow as tf
from absl import app, flags

from benchmarks.scaling import cluster_servers
from benchmarks.support import common, line_chart
from lingpipe import layers
from lingpipe.devices import device_kinds
from lingpipe.placements import parameter_servers
from lingpipe.training import experiment, train_program
from params import linear_regression

_MODES = IN_GRAPH, SYNC, ASYNC = ('in_graph', 'sync', 'async')
_UPDATES = {SYNC: parameter_servers.SYNCHRONOUS, ASYNC: parameter_servers.ASYNCHRONOUS}
_CHOSEN = flags.DEFINE_list('modes', list(_MODES), 'Ways to train to measure.')
_WORKERS = flags.DEFINE_list('num_workers', ['1', '2', '3', '4'], 'Numbers of workers to measure with.')
_SECONDS = flags.DEFINE_float('seconds', 8.0, 'How long each training is measured.', lower_bound=0.1)
_PAUSE = flags.DEFINE_float('pause_milliseconds', 50.0, 'Time of a step on a worker.')
_SLOWER = flags.DEFINE_float('slower', 4.0, 'How many times as long it is on the slow worker.')
_ROWS = flags.DEFINE_integer('rows', 20, 'Examples that a worker gets in a step.', lower_bound=1)
_LEARNING_RATE = flags.DEFINE_float('learning_rate', 0.01, 'Learning rate of SGD.')
_SPEED_UP_PICTURE = flags.DEFINE_string('speed_up_picture', None, 'PNG file to draw the speed-up into.')
_LOSS_PICTURE = flags.DEFINE_string('loss_picture', None, 'PNG file to draw the loss against time into, with one slow '
                                                          'worker.')

_WARM_UP_STEPS = 10
_NUM_POINTS = 8
_PAUSE_FILE = 'pause_microseconds'


class Pause(keras.layers.Layer):
    """Passes its input on after a while, which needs neither Python nor a processor.

    A step so takes the time of an accelerator that this machine does not have. How long is in a file of
    the folder that the process runs in, so that one worker of several can be slower.
    """

    def call(self, inputs):
        # Else the file would be read elsewhere.
        nothing = tf.strings.substr(tf.strings.as_string(tf.reshape(inputs, [-1])[0]), 0, 0)
        microseconds = tf.strings.to_number(tf.io.read_file(tf.strings.join([_PAUSE_FILE, nothing])), tf.int64)
        return inputs + tf.zeros_like(inputs) * tf.cast(_slept(microseconds), inputs.dtype)

    def compute_output_shape(self, input_shape):
        return input_shape


def _slept(microseconds):
    """Sleeps in an element of a dataset, for which TensorFlow has an operation."""
    one = tf.data.Dataset.from_tensors(tf.constant(0, tf.int64))
    sleeping = tf.raw_ops.SleepDataset(
        input_dataset=one._variant_tensor, sleep_microseconds=microseconds, output_types=[tf.int64], output_shapes=[[]])
    return tf.raw_ops.DatasetToSingleElement(dataset=sleeping, output_types=[tf.int64], output_shapes=[[]])[0]


class Experiment(linear_regression.EightWeights):
    """One training.

    Args:
        mode: one of _MODES.
        num_workers: number of workers.
    """

    def __init__(self, mode, num_workers):
        self._mode, self._num_workers = mode, num_workers

    def Train(self):
        return super().Train().Set(batch_size=_ROWS.value * (1 if self._mode == ASYNC else self._num_workers))

    def Task(self):
        p = super().Task()
        p.body.Set(
            recompute='none', layers=[layers.KerasParams(Pause), layers.KerasParams(keras.layers.Dense, units=1)])
        p.body.num_replicas = self._num_workers if self._mode == IN_GRAPH else 1
        p.train.Set(learning_rate=_LEARNING_RATE.value, max_steps=10**6)
        return p


def train(mode, num_workers, is_one_slow):
    """Runs in a process of its own.

    Yields:
        Dictionary of lists: 'seconds' since the first measured step, 'losses' and 'staleness' of all steps; and 'rows'
        of a step.
    """
    microseconds = [
        int(1000 * _PAUSE.value * (_SLOWER.value if is_one_slow and index == 0 else 1)) for index in range(num_workers)]
    files = [{_PAUSE_FILE: str(number)} for number in microseconds]
    device_kinds.use_virtual_devices(1)
    with cluster_servers.running(num_workers, 0 if mode == IN_GRAPH else 1, files) as config:
        program, iterator, rows = _program(Experiment(mode, num_workers), mode, config)
        for _ in range(_WARM_UP_STEPS):
            program.run(iterator, 1)
        points = list(_points(program, iterator))
    yield dict(zip(('seconds', 'losses', 'staleness'), map(list, zip(*points)))) | {'rows': rows}


def _points(program, iterator):
    begin = time.perf_counter()
    while (seconds := time.perf_counter() - begin) < _SECONDS.value:
        metrics = program.run(iterator, 1).metrics
        yield seconds, float(metrics['loss'][-1]), float(metrics['staleness'][-1]) if 'staleness' in metrics else 0.0


def _program(made, mode, config):
    """Returns the program, the iterator over its batches, and the rows of a batch."""
    if mode == IN_GRAPH:
        program, data = _in_graph_program(made, config)
    else:
        servers = parameter_servers.ParameterServers(config, _UPDATES[mode])
        program, _, data = cluster_servers.program_of(made, servers)
    return program, program.open_input(data, 0), data.params.batch_size


def _in_graph_program(made, config):
    params, data = made.Model(), experiment.build_input(made.Train())
    tf.config.experimental_connect_to_cluster(tf.train.ClusterSpec({'worker': config.jobs['worker']}))
    devices = [f'/job:worker/replica:0/task:{index}/device:CPU:0' for index in range(config.num_workers)]
    with tf.variable_creator_scope(_on_the_chief):
        task = experiment.build_task(params, data.input_spec, devices)
    program = train_program.TrainProgram(task, params.train)
    program.state_restored()
    return program, data


def _on_the_chief(next_creator, **arguments):
    with tf.device('/job:localhost/replica:0/task:0/device:CPU:0'):
        return next_creator(**arguments)


def _measured(mode, num_workers, is_one_slow):
    with common.Process(train, mode, num_workers, is_one_slow) as process:
        return process.next()


def _throughput(result):
    return len(result['seconds']) * result['rows'] / _SECONDS.value


def _losses_at(result, times):
    """Returns the losses, means over a tenth of the time measured, at some times."""
    seconds, losses = np.array(result['seconds']), np.array(result['losses'])
    near = [losses[np.abs(seconds - moment) <= _SECONDS.value / 20] for moment in times]
    return [float(some.mean()) if len(some) else float(losses[np.argmin(np.abs(seconds - moment))])
            for some, moment in zip(near, times)]


def _draw(path, *arguments, **titles):
    if path:
        pathlib.Path(path).write_bytes(line_chart.png(*arguments, **titles))


def main(unused_argv):
    counts = [int(count) for count in _WORKERS.value]
    results = {(mode, count): _measured(mode, count, False) for mode, count in itertools.product(_CHOSEN.value, counts)}
    slow = {mode: _measured(mode, counts[-1], True) for mode in _CHOSEN.value}
    speed_ups = {mode: [_throughput(results[mode, count]) / _throughput(results[mode, counts[0]]) for count in counts]
                 for mode in _CHOSEN.value}
    times = [_SECONDS.value * (index + 0.5) / _NUM_POINTS for index in range(_NUM_POINTS)]
    losses = {mode: _losses_at(result, times) for mode, result in slow.items()}
    _draw(_SPEED_UP_PICTURE.value, speed_ups, counts, x_title='workers', y_title=
        'examples a second, times those of the fewest workers')
    _draw(_LOSS_PICTURE.value, losses, times, x_title='seconds', y_title='training loss, one of the workers slow')
    rows = [[mode, count, f'{_throughput(results[mode, count]):.0f}', f'{speed_up:.2f}',
             f'{np.mean(results[mode, count]["staleness"]):.2f}']
            for mode in _CHOSEN.value for count, speed_up in zip(counts, speed_ups[mode])]
    slow_rows = [[mode, f'{_throughput(slow[mode]):.0f}',
                  f'{_throughput(slow[mode]) / _throughput(results[mode, counts[-1]]):.2f}',
                  f'{np.mean(slow[mode]["staleness"]):.2f}',
                  *[f'{loss:.4f}' for loss in losses[mode]]] for mode in _CHOSEN.value]
    common.report(
        common.markdown_table(['training', 'workers', 'examples/s', 'speed-up', 'mean staleness'], rows),
        f'{counts[-1]} workers, one of which takes {_SLOWER.value:g} times as long:',
        common.markdown_table([
            'training', 'examples/s', 'of all equal', 'mean staleness', *[f'loss at {moment:g} s' for moment in times]],
                              slow_rows),
        f'A step takes {_PAUSE.value:g} ms on a worker and has {_ROWS.value} examples for each; {_SECONDS.value:g} s '
        'each.')


if __name__ == '__main__':
    app.run(main)
