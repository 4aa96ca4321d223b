"""What a checkpoint costs a training run that continues while it is written, and one that waits for it.

    python -m benchmarks.faults.async_checkpoints --mib=500 --interval_seconds=10 --rounds=2

A stack of dense layers on two partitions, with Adam, whose weights and slots are of --mib altogether, trains on this
machine's cores: no saves, saves in a thread and saves that are waited for take turns. The pause is the time in which no
step can begin. The cost is what the throughput of a round is less than that of the rounds without saves around it: the
pause, the writing on cores that train too, and the copies of variables that a step changes while they are written.
"""

import shutil
import statistics
import tempfile
import time

import keras
from absl import app, flags

from benchmarks.support import common
from lingpipe import layers
from lingpipe.devices import device_kinds
from lingpipe.training import checkpointing, experiment, train_program
from params import linear_regression

_MIB = flags.DEFINE_float('mib', 500., 'MiB of a checkpoint.', lower_bound=1.)
_INTERVAL = flags.DEFINE_float('interval_seconds', 10., 'Seconds between two saves.', lower_bound=.1)
_SAVES = flags.DEFINE_integer('saves', 2, 'Saves in a round.', lower_bound=1)
_ROUNDS = flags.DEFINE_integer('rounds', 2, 'Rounds of each way.', lower_bound=1)
_BATCH_SIZE = flags.DEFINE_integer('batch_size', 60, 'Examples in a step.', lower_bound=2)
_WIDTH = 1024
_STATE_PER_WEIGHT = 3 * 4  # bytes of a weight and Adam's two slots
NONE, ASYNC, WAITING = WAYS = ('no saves', 'save_async=True', 'save_async=False')


def _params():
    num_layers = max(2, round(_MIB.value * 2**20 / (_STATE_PER_WEIGHT * _WIDTH**2)))
    model = linear_regression.EightWeights()
    params = model.Model()
    params.Define('input', model.Train().Set(batch_size=_BATCH_SIZE.value), '')
    dense = layers.KerasParams(keras.layers.Dense, units=_WIDTH, activation='relu')
    params.task.body.Set(num_partitions=2, num_micro_batches=2, layers=[
        *[dense] * num_layers, layers.KerasParams(keras.layers.Dense, units=1)])
    params.train.Set(learning_rate=1e-6, optimizer=layers.KerasParams(keras.optimizers.Adam))
    return params


class Training:
    """A training run that saves now and then.

    Args:
        folder: folder of its checkpoints.
    """

    def __init__(self, folder):
        params = _params()
        data = experiment.build_input(params.input)
        task = experiment.build_task(params, data.input_spec, device_kinds.stage_devices(2, 'CPU'))
        self._program = train_program.TrainProgram(task, params.train)
        self._iterator = self._program.iterate(lambda share: data.training_dataset(0, share))
        self._checkpointer = checkpointing.Checkpointer(folder, self._program, max_to_keep=2)
        self.mib = sum(map(keras.ops.size, task.body.weights)) * _STATE_PER_WEIGHT / 2**20

    def round(self, way):
        """Trains for a while; returns examples a second, and the seconds of each pause."""
        pauses, steps, begin = [], 0, time.monotonic()
        while (passed := time.monotonic() - begin) < _INTERVAL.value * _SAVES.value:
            if way != NONE and passed >= _INTERVAL.value * len(pauses):
                pauses.append(self._pause(way))
            self._program.run(self._iterator, 1)
            steps += 1
        rate = steps * _BATCH_SIZE.value / (time.monotonic() - begin)
        self._checkpointer.save()  # so that no round writes for another
        return rate, pauses

    def _pause(self, way):
        begin = time.monotonic()
        if way == ASYNC:
            self._checkpointer.begin_save()
        else:
            self._checkpointer.save()
        return time.monotonic() - begin


def _rounds(training):
    """Returns a list of examples a second for each way, and a list of pauses."""
    rates, pauses = {way: [] for way in WAYS}, {way: [] for way in WAYS}
    training.round(ASYNC)  # traces and compiles
    for _ in range(_ROUNDS.value):
        for way in WAYS:
            rate, seconds = training.round(way)
            rates[way].append(rate)
            pauses[way] += seconds
    return rates, pauses


def _row(way, rates, pauses):
    rate, undisturbed = statistics.mean(rates[way]), statistics.mean(rates[NONE])
    if way == NONE:
        return [way, '', '', f'{rate:.1f}', '']
    pause, waiting = statistics.median(pauses[way]), statistics.median(pauses[WAITING])
    return [way, f'{pause:.3f}', f'{pause / waiting:.0%}', f'{rate:.1f}', f'{1 - rate / undisturbed:.1%}']


def main(unused_argv):
    device_kinds.use_virtual_devices(2)
    folder = tempfile.mkdtemp()
    try:
        training = Training(folder)
        rates, pauses = _rounds(training)
    finally:
        shutil.rmtree(folder)
    common.report(
        common.markdown_table(['saves', 'pause s', 'of waiting', 'examples/s', 'cost'],
                              [_row(way, rates, pauses) for way in WAYS]),
        f'{training.mib:.0f} MiB on two partitions, a save every {_INTERVAL.value:g} s; {_ROUNDS.value} rounds of '
        f'{_SAVES.value} saves each. Pause: median.')


if __name__ == '__main__':
    app.run(main)
