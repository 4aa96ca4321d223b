"""Injects faults into a training run on many machines: when each is noticed, when steps resume, how many are
lost.

    python -m benchmarks.faults.faults --clusters=pipeline,multi_worker,parameter_server --output=faults.md

Each cluster is of this machine: two workers, and for parameter servers, with asynchronous updates, one of these. All
processes have --max_restarts=5 and --step_timeout_seconds=10, and checkpoints are written every 2 seconds; a step takes
about 40 ms. A cluster takes its faults one after the other, and is started again by hand, which is not timed, where it
ended.

With --replace_after_seconds a machine is lost with its supervisor, and comes back later without help. It is lost
only when the processes on standby are ready.
"""

import itertools
import json
import os
import pathlib
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

from absl import app, flags

from benchmarks.faults import struck_training
from benchmarks.support import common

_CLUSTERS = flags.DEFINE_list('clusters', list(struck_training.CLUSTERS), 'Values of --cluster to try.')
_FAULTS = flags.DEFINE_list('faults', None, 'Names of faults; all by default.')
_PAUSE = flags.DEFINE_float('seconds_between', 5., 'Undisturbed training before each fault.')
_REPLACE = flags.DEFINE_float('replace_after_seconds', 2., 'How long a machine may be gone.', lower_bound=.1)

_TELLS = (r'\[supervisor\]|Error: |lost in the middle of a step|was asked to stop|topped by |worker:1 has ended'
          r'|^\[launcher\] .* (ended with exit code [1-9]|was ended by)')
_DAMAGED = r'Error: Checkpoint .*ckpt-(\d+) cannot be read'
_IS_LEFT_OUT = r'(has|did) not answer(ed)? for'
_SECONDS_FOR_A_SAVE = 60
_SECONDS_TO_END = 300


def _signal_to_child(task, number):
    def strike(training):
        os.kill(training.child(training.chief if task == 'chief' else task), number)

    return strike


def _sigterm(task):
    """As a cloud does it, to the first process of the machine."""
    def strike(training):
        os.kill(training.supervisor(task), signal.SIGTERM)

    return strike


def _kill_while_saving(training):
    """A checkpoint is written under other names, and gets its own when it is whole."""
    folder, child = pathlib.Path(training.logdir, 'train'), training.child(training.chief)
    deadline = time.monotonic() + _SECONDS_FOR_A_SAVE
    while not any('temp' in name
                  for name in os.listdir(folder)):  # without a pause, for a small checkpoint is written in no time
        if time.monotonic() > deadline:
            raise RuntimeError(f'No checkpoint was written in {_SECONDS_FOR_A_SAVE} s; the last lines: '
                               f'{training.lines[-10:]}')
    os.kill(child, signal.SIGKILL)


def _fill_disk(training):
    """Files that grow beyond some bytes stand for a disk without space."""
    resource.prlimit(training.child(training.chief), resource.RLIMIT_FSIZE, (100, 100))


def _damage_newest(training):
    """What a disk that loses power may do to a checkpoint that was whole."""
    child = training.child(training.chief)
    os.kill(child, signal.SIGKILL)
    files = pathlib.Path(training.logdir, 'train').glob(f'ckpt-{training.checkpoints()[-1]}.data*')
    data = max(files, key=lambda file: file.stat().st_size)
    os.truncate(data, data.stat().st_size // 2)


_STRIKES = {
    'worker killed': _signal_to_child('worker 1', signal.SIGKILL),
    'worker hung (SIGSTOP)': _signal_to_child('worker 1', signal.SIGSTOP),
    'chief killed': _signal_to_child('chief', signal.SIGKILL),
    'chief killed while it saves': _kill_while_saving,
    'chief hung (SIGSTOP)': _signal_to_child('chief', signal.SIGSTOP),
    'server killed': _signal_to_child('ps 0', signal.SIGKILL),
    'disk full': _fill_disk,
    'newest checkpoint cut in half': _damage_newest,
    'SIGTERM to one worker': _sigterm('worker 1'),
    'SIGTERM to a server': _sigterm('ps 0')}
_PORT_TAKEN = 'port taken'
_LEFT_OUT, _BACK = 'machine of a worker lost', 'that machine back'
_SECONDS_UNTIL_STANDBY = 25  # for processes that are already at work


class Outcome:
    """The consequences of one fault.

    Args:
        training: the `StruckTraining`.
        first: number of the first line after the fault.
        moment: time of the fault.
        resumed: number of the line of the first step after training resumed, or None if it ended.
    """

    def __init__(self, training, first, moment, resumed):
        self._training, self._first, self._moment, self._resumed = training, first, moment, resumed

    def row(self):
        """Returns seconds until it is noticed and until steps resume, the steps lost, and how it ended."""
        training, noticed_at = self._training, self._training.wait_for(_TELLS, self._first, 0)
        if noticed_at is not None:
            print(training.lines[noticed_at][1], file=sys.stderr)
        noticed = '-' if noticed_at is None else f'{max(0., training.lines[noticed_at][0] - self._moment):.1f}'
        if self._resumed is None:
            return [noticed, '-', self._lost(training.checkpoints()[-1], None),
                f'ends with exit code {training.exit_code()}']
        restarts = training.starts(self._first)
        if not restarts:
            return [noticed, f'{self._longest_gap():.1f}', 0, 'continues with the others']
        number, step = restarts[-1]
        return [noticed, f'{training.lines[self._resumed][0] - self._moment:.1f}', self._lost(step, number), 'resumes']

    def _lost(self, step, last_line):
        return max(0, self._training.steps(0, last_line)[-1][1] - step)

    def _longest_gap(self):
        moments = [self._moment, *[moment for moment, _ in self._training.steps(self._first, self._resumed)]]
        return max(after - before for before, after in zip(moments, moments[1:]))


def _strike(training, name):
    if not training.is_running():
        training.start()
    training.wait_for(rf'^\[{training.chief}\] step ', len(training.lines))
    time.sleep(_PAUSE.value)
    first = len(training.lines)
    _STRIKES[name](training)
    moment = time.monotonic()
    return Outcome(training, first, moment, _first_step_after(training, name, first))


def _first_step_after(training, name, first):
    """Returns the number of its line, or None if training ended.

    Asynchronous training continues with the other workers; it has recovered when the struck one serves again.
    """
    is_of_one_worker = training.cluster == struck_training.PARAMETER_SERVER and 'worker' in name
    again = r'^\[worker 1\] .* (serves at|has ended)' if is_of_one_worker else r'resuming from step'
    number = training.wait_for(again, first, _SECONDS_TO_END)
    if number is None:
        training.stop()
        return None
    return training.wait_for(rf'^\[{training.chief}\] (First step|step )', number, _SECONDS_TO_END)


def _mend(training):
    """Does what training asks a person to do."""
    damaged = [match[1] for match in (re.search(_DAMAGED, line) for _, line in training.lines) if match]
    for step in damaged:
        for file in pathlib.Path(training.logdir, 'train').glob(f'ckpt-{step}.*'):
            file.unlink()


def _rows(cluster, names):
    folder = tempfile.mkdtemp()
    training = struck_training.StruckTraining(cluster, folder)
    try:
        for name in names:
            outcome = _strike(training, name)
            if name == 'newest checkpoint cut in half':
                _mend(training)
            yield [cluster, name, *outcome.row()]
    finally:
        training.stop()
        shutil.rmtree(folder)


def _rows_without_worker(cluster):
    """A machine is lost, and comes back."""
    with tempfile.TemporaryDirectory() as folder:
        training = struck_training.StruckTraining(cluster, folder, replace_after_seconds=_REPLACE.value)
        try:
            training.start()
            training.wait_for(rf'^\[{training.chief}\] step ')
            time.sleep(_SECONDS_UNTIL_STANDBY if cluster == struck_training.MULTI_WORKER else _PAUSE.value)
            first = len(training.lines)
            os.kill(training.supervisor('worker 1'), signal.SIGKILL)
            moment = time.monotonic()
            outcome = Outcome(training, first, moment, _first_step_after(training, _LEFT_OUT, first))
            if training.wait_for(_IS_LEFT_OUT, first, 0) is None:
                yield [cluster, _LEFT_OUT, *outcome.row()[:-1], 'is back before steps resume']
                return
            yield [cluster, _LEFT_OUT, *outcome.row()[:-1], 'continues without it']
            yield [cluster, _BACK, *_taken_in(training, first), 'continues with it']
        finally:
            training.stop()


def _taken_in(training, first):
    """Returns what `Outcome.row` does, without the last, for a worker that is there again."""
    again = training.wait_for('again: training continues over', first, _SECONDS_TO_END)
    resumed = training.wait_for(rf'^\[{training.chief}\] (First step|step )', again, _SECONDS_TO_END)
    moment, last = training.steps(first, again)[-1]
    (_, step), *_ = training.starts(again)
    return ['-', f'{training.lines[resumed][0] - moment:.1f}', max(0, last - step)]


def _port_taken(cluster):
    """Only one process starts, with a port that this one holds for a while."""
    with tempfile.TemporaryDirectory() as folder, socket.create_server(('', 0)) as holder:
        jobs = {'worker': [f'127.0.0.1:{holder.getsockname()[1]}', '127.0.0.1:1']}
        jobs |= {} if cluster == struck_training.MULTI_WORKER else {'chief': ['127.0.0.1:2'], 'ps': ['127.0.0.1:3']}
        if cluster == struck_training.PIPELINE:
            del jobs['ps']
        config = json.dumps({'cluster': jobs, 'task': {'type': 'worker', 'index': 0}})
        begin = time.monotonic()
        with subprocess.Popen(
                [sys.executable, *struck_training.training_command(cluster, folder), f'--cluster={cluster}'],
                env=struck_training.environment() | {'TF_CONFIG': config}, text=True,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as worker:
            noticed = _moment_of(worker, 'cannot serve at port') - begin
            time.sleep(_PAUSE.value)
            holder.close()
            free = time.monotonic()
            serves = _moment_of(worker, 'worker:0 (serves at|at .* waits for all)') - free
            worker.kill()
        return [cluster, _PORT_TAKEN, f'{noticed:.1f}', f'{serves:.1f}', 0, 'starts once it is free']


def _moment_of(process, pattern):
    """Returns when a process prints such a line."""
    printed = []
    for line in process.stdout:
        printed.append(line)
        if re.search(pattern, line):
            return time.monotonic()
    raise RuntimeError(f'The process ended without a line {pattern!r}: {"".join(printed)}')


def main(unused_argv):
    chosen = _FAULTS.value or [*_STRIKES, _PORT_TAKEN, _LEFT_OUT]
    rows = []
    for cluster in _CLUSTERS.value:
        is_with_servers = cluster == struck_training.PARAMETER_SERVER
        names = [name for name in _STRIKES if name in chosen and (is_with_servers or 'server' not in name)]
        elastic = _LEFT_OUT in chosen and not is_with_servers
        struck, lost = _rows(cluster, names) if names else [], _rows_without_worker(cluster) if elastic else []
        for row in itertools.chain(struck, lost):
            rows.append(row)
            print(*row, sep=' | ', file=sys.stderr, flush=True)
        rows += [_port_taken(cluster)] if _PORT_TAKEN in chosen else []
    common.report(common.markdown_table(
        ['--cluster', 'fault', 'noticed after s', 'steps resume after s', 'steps lost', 'outcome'], rows))


if __name__ == '__main__':
    app.run(main)
