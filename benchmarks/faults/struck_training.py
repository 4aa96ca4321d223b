"""Training in a cluster on this machine: faults are injected into its processes, and its output tells the rest."""

import functools
import os
import pathlib
import re
import runpy
import signal
import subprocess
import sys
import threading
import time

import wrapt

from lingpipe.cluster import child_process

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_MARK = 'LINGPIPE_STRUCK_TRAINING'
_STEP = re.compile(r'step (\d+)/')
_GOES_ON = re.compile(r'resuming from step (\d+)')
_INDEX = re.compile(r'ckpt-(\d+)\.index')
_SECONDS_TO_STOP = 60
_STAGES = {2: 'TwoStages', 16: 'SixteenStages'}
PIPELINE, MULTI_WORKER, PARAMETER_SERVER = CLUSTERS = ('pipeline', 'multi_worker', 'parameter_server')


class StruckTraining:
    """A linear regression on two workers or more and, in that mode, a parameter server; all processes restart.

    Args:
        cluster: one of CLUSTERS.
        logdir: folder of the run.
        max_restarts: how often each process may start again without a new checkpoint.
        step_timeout_seconds: as run.py takes it.
        replace_after_seconds: as run.py takes it; where it is not 0, the launcher restarts a machine that was killed.
        num_workers: 2 or 16.
        words: words that train on one machine, into `logdir`; None: those of `training_command`.

    Attributes:
        lines: list of (time, line) of what all processes printed.
        chief: name of the process that writes checkpoints, such as 'chief'.
        tasks: list of the names of all processes.
    """

    def __init__(self, cluster, logdir, max_restarts=5, step_timeout_seconds=10, replace_after_seconds=0,
                 num_workers=2, words=None):
        self.cluster, self.logdir = cluster, logdir
        self.lines = []
        self.chief = 'worker 0' if cluster == MULTI_WORKER else 'chief'
        num_servers = int(cluster == PARAMETER_SERVER)
        self.tasks = [self.chief] * (self.chief == 'chief') + [
            f'worker {index}' for index in range(num_workers)] + ['ps 0'] * num_servers
        self._command = [
            sys.executable, '-m', 'lingpipe.cluster.local_cluster', f'--workers={num_workers}', f'--ps={num_servers}',
            f'--restart={5 * bool(replace_after_seconds)}', '--',
            *(words or training_command(cluster, logdir, num_workers)),
            f'--cluster={cluster}', f'--max_restarts={max_restarts}',
            f'--step_timeout_seconds={step_timeout_seconds}',
            *[f'--replace_after_seconds={replace_after_seconds}'] * bool(replace_after_seconds)]
        self._process = None

    def start(self):
        """Starts it, from the newest checkpoint if there is one."""
        self._process = child_process.start(
            self._command, env=environment() | {_MARK: str(os.getpid())}, text=True, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT)
        self._reader = threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True)
        self._reader.start()

    def is_running(self):
        """Says whether the cluster has not ended."""
        return self._process is not None and self._process.poll() is None

    def exit_code(self):
        """Waits for the end; returns the exit code, and all lines are there."""
        code = self._process.wait()
        self._reader.join()
        return code

    def stop(self):
        """Asks training to end, as Ctrl+C does; returns its exit code."""
        if self.is_running():
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(_SECONDS_TO_STOP)
            except subprocess.TimeoutExpired:
                self._process.kill()
        return self.exit_code()

    def supervisor(self, task):
        """Returns the number of the process that starts a task's training again."""
        found = [line.rpartition(' ')[2] for _, line in list(self.lines) if line.startswith(
            f'[launcher] {task} is process ')]
        return int(found[-1])

    def child(self, task):
        """Returns the number of the process that does a task's work, or None while there is none."""
        supervisor = self.supervisor(task)
        children = pathlib.Path(f'/proc/{supervisor}/task/{supervisor}/children').read_text().split()
        return int(children[0]) if children else None

    def wait_for(self, pattern, first=0, seconds=300):
        """Waits for a line, while the cluster runs.

        Args:
            pattern: regular expression.
            first: number of the line from which to search.
            seconds: how long to wait.

        Returns:
            Number of the first such line, or None.
        """
        deadline = time.monotonic() + seconds
        while True:
            is_last_look = time.monotonic() >= deadline or not self.is_running()
            for number in range(first, len(self.lines)):
                if re.search(pattern, self.lines[number][1]):
                    return number
                first = number + 1
            if is_last_look:
                return None
            time.sleep(.01)

    def steps(self, first=0, last=None):
        """Returns a list of (time, step) of the chief's lines with these numbers."""
        found = [(moment, _STEP.search(line)) for moment, line in self.lines[first:last] if line.startswith(
            f'[{self.chief}] step ')]
        return [(moment, int(match[1])) for moment, match in found if match]

    def starts(self, first=0):
        """Returns a list of (number of line, step) of where training resumed from a checkpoint."""
        found = [(number, _GOES_ON.search(line)) for number, (_, line) in enumerate(self.lines[first:], first)]
        return [(number, int(match[1])) for number, match in found if match]

    def checkpoints(self):
        """Returns the steps of all checkpoints that are there, in their order."""
        folder = pathlib.Path(self.logdir, 'train')
        matches = [_INDEX.fullmatch(name) for name in os.listdir(folder)] if folder.is_dir() else []
        return sorted(int(match[1]) for match in matches if match)

    def _read(self, lines):
        for line in lines:
            self.lines.append((time.monotonic(), line.rstrip('\n')))


def training_command(cluster, logdir, num_workers=2):
    """Returns the words that train, on this machine alone, the model for a cluster of so many workers."""
    model = _STAGES[num_workers] if cluster == PIPELINE else 'OneStage'
    return [__file__, f'--model=benchmarks.faults.slow_regression.{model}', f'--logdir={logdir}', '--device=cpu']


def environment():
    """Returns the environment of the processes."""
    return os.environ | {'PYTHONPATH': str(_ROOT), 'TF_CPP_MIN_LOG_LEVEL': '3'}


def left_over():
    """Returns the numbers of processes that belong to a cluster of this process."""
    mark = f'{_MARK}={os.getpid()}\0'.encode()
    return [int(folder.name) for folder in pathlib.Path('/proc').iterdir()
            if folder.name.isdigit() and mark in _environment_of(folder)]


def _environment_of(folder):
    try:
        return (folder / 'environ').read_bytes() + b'\0'
    except OSError:  # it has ended, or belongs to somebody else
        return b''


def _run_telling_steps():
    """Runs run.py so that it prints a line for every step, so that others see when none ends."""
    wrapt.register_post_import_hook(_tell_every_step, 'lingpipe.training.progress')
    runpy.run_path(str(_ROOT / 'run.py'), run_name='__main__')


def _tell_every_step(progress):
    progress.Progress = functools.partial(progress.Progress, interval_seconds=0)


if __name__ == '__main__':  # in a process of a training run
    _run_telling_steps()
