r"""Trains under Slurm while faults are injected, one every 70 seconds, and prints what each fault cost.

    python -m benchmarks.faults.slurm_soak --minutes=15 --script=pipeline
    python -m benchmarks.faults.slurm_soak --minutes=15 --script=multi_worker

It needs root, and Debian's slurm-wlm and munge, because it starts a Slurm of three nodes on this machine. The log
directory is in a separate file system, which is filled and frozen. At the end the job is stopped, and its weights are
compared with the weights of an undisturbed run at the same step.
"""

import contextlib
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import NamedTuple

from absl import app, flags

from benchmarks.faults import save_moments
from benchmarks.support import common
from tests.slurm import slurm_on_one_machine

_MINUTES = flags.DEFINE_float('minutes', 30., 'How long to train.', lower_bound=1.)
_SCRIPT = flags.DEFINE_enum('script', 'pipeline', ['pipeline', 'multi_worker'], 'Which script of deploy/slurm to run.')

_SECONDS_BETWEEN_FAULTS = 70  # the scripts give up after five tries of less than a minute
_SECONDS_STOPPED = 10
_STEP_TIMEOUT_SECONDS = 10
_STEPS = 'train.save_interval_seconds=5; train.steps_per_loop=1; train.max_steps='
_BEGUN = re.compile(r'First step after')
_NUM_NODES = {'pipeline': 3, 'multi_worker': 2}


class Recovery(NamedTuple):
    """What a fault cost.

    Attributes:
        fault: its name.
        seconds: from the fault to the first step of the resumed training; None: training did not stop.
        lost_seconds: age of the checkpoint that it resumed from, at the fault.
        resumed_step: step of this checkpoint.
        memory: MiB of the process of task 0 afterwards.
        num_descriptors: its open files and sockets.
    """

    fault: str
    seconds: float | None
    lost_seconds: float | None = None
    resumed_step: int | None = None
    memory: float = 0.
    num_descriptors: int = 0


class Soak:
    """A job under injected faults.

    Args:
        slurm: `slurm_on_one_machine.Slurm`.
        disk: folder with a file system of its own.
        job_of: function that submits the job and returns its number.
    """

    def __init__(self, slurm: slurm_on_one_machine.Slurm, disk: pathlib.Path, job_of: Callable[[], str]) -> None:
        self._slurm, self._disk, self._job_of = slurm, disk, job_of
        self.job = job_of()
        slurm.wait_for(self.job, _BEGUN.search)

    def kill(self, rank: int) -> Callable[[], None]:
        """Return the fault that kills a task."""
        return lambda: os.kill(self._slurm.process_of(self.job, rank), signal.SIGKILL)

    def stop(self) -> None:
        """Stop a worker, which then neither computes nor ends."""
        os.kill(self._slurm.process_of(self.job, 1), signal.SIGSTOP)

    def terminate(self) -> None:
        """Send SIGTERM to all tasks at once."""
        self._slurm.command('scancel', '--signal=TERM', self.job)

    def lose_node(self) -> None:
        """Set the node of the last task down, and up again."""
        node = self._slurm.command('scontrol', 'show', 'hostnames', self._slurm.command(
            'squeue', '--noheader', f'--job={self.job}', '--format=%N')).split()[-1]
        self._slurm.command('scontrol', 'update', f'NodeName={node}', 'State=DOWN', 'Reason=fault')
        self._slurm.wait_for_state(self.job, 'PENDING')
        with contextlib.suppress(subprocess.CalledProcessError):  # it is back by itself once it answers
            self._slurm.command('scontrol', 'update', f'NodeName={node}', 'State=RESUME')
        self._slurm.command('scontrol', 'update', f'JobId={self.job}', 'StartTime=now')  # else it waits for two minutes

    def freeze_disk(self) -> None:
        """Let nothing be written for some seconds."""
        subprocess.run(['fsfreeze', '--freeze', self._disk], check=True)
        time.sleep(_SECONDS_STOPPED)
        subprocess.run(['fsfreeze', '--unfreeze', self._disk], check=True)

    def fill_disk(self) -> None:
        """Fill the disk until the job has failed, empty it, and submit the job again."""
        filler = self._disk / 'filler'
        with contextlib.suppress(OSError), filler.open('wb') as file:
            while file.write(bytes(2**16)):
                file.flush()
        self._slurm.wait_for_state(self.job, 'FAILED')
        filler.unlink()
        self.job = self._job_of()

    def recovery(self, name: str, fault: Callable[[], None]) -> Recovery:
        """Inject a fault, and wait until training has resumed."""
        known, job, begin = len(_BEGUN.findall(self._slurm.output(self.job))), self.job, time.time()
        fault()
        known = known if self.job == job else 0
        if fault == self.freeze_disk:
            time.sleep(_SECONDS_BETWEEN_FAULTS / 2)
            assert len(_BEGUN.findall(self._slurm.output(self.job))) == known
            return Recovery(name, None)._replace(**self._size())
        output = self._slurm.wait_for(self.job, lambda text: len(_BEGUN.findall(text)) > known and text)
        seconds, step = time.time() - begin, int(re.findall(r'resuming from step (\d+)', output)[-1])
        saved = os.stat(next(self._disk.glob(f'logs/train/ckpt-{step}.index'))).st_mtime
        return Recovery(name, seconds, max(0, begin - saved), step)._replace(**self._size())

    def _size(self):
        process = pathlib.Path('/proc', str(self._slurm.process_of(self.job, 0)))
        kib = int(re.search(r'VmRSS:\s+(\d+)', (process / 'status').read_text())[1])
        return {'memory': kib / 1024, 'num_descriptors': len(list((process / 'fd').iterdir()))}

    def faults(self) -> list[tuple[str, Callable[[], None]]]:
        """Return the names of faults, and functions that inject them."""
        return [('kill -9 of a worker', self.kill(1)), ('kill -9 of task 0', self.kill(0)),
                ('SIGSTOP of a worker', self.stop), ('SIGTERM to all tasks', self.terminate),
                (f'disk frozen for {_SECONDS_STOPPED} s', self.freeze_disk), ('disk full', self.fill_disk),
                ('node down and up', self.lose_node)]


@contextlib.contextmanager
def _disk(folder):
    """Yield a folder with a small file system of its own."""
    image, place = folder / 'image', folder / 'disk'
    place.mkdir()
    with image.open('wb') as file:
        file.truncate(128 * 2**20)
    subprocess.run(['mkfs.ext4', '-q', image], check=True)
    subprocess.run(['mount', '-o', 'loop', image, place], check=True)
    try:
        yield place
    finally:
        subprocess.run(['umount', '--lazy', place], check=True)


def _reference(slurm, folder, step):
    """Train without faults up to a step; return the path of the checkpoint."""
    command = ['lingpipe', 'train', '--model=tiny_digits', f'--logdir={folder}/reference',
               f'--model_params_override={_STEPS}{step}']
    if _SCRIPT.value == 'multi_worker':
        command = ['lingpipe', 'local_cluster', '--workers=2', '--', *command, '--cluster=multi_worker']
    command = [sys.executable, '-m', *command]
    subprocess.run(command, env=slurm.environment, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return folder / f'reference/train/ckpt-{step}'


def _row(one):
    numbers = ['did not stop', '', ''] if one.seconds is None else [
        f'{one.seconds:.1f}', f'{one.lost_seconds:.1f}', one.resumed_step]
    return [one.fault, *numbers, f'{one.memory:.0f}', one.num_descriptors]


def main(_):
    folder = pathlib.Path(tempfile.mkdtemp())
    with slurm_on_one_machine.running(folder) as slurm, _disk(folder) as disk:
        soak = Soak(slurm, disk, lambda: slurm.submit(
            f'{_SCRIPT.value}.sbatch', '--model=tiny_digits.StarvedDigits', f'--logdir={disk}/logs',
            f'--model_params_override={_STEPS}1000000', f'--step_timeout_seconds={_STEP_TIMEOUT_SECONDS}',
            options=[f'--nodes={_NUM_NODES[_SCRIPT.value]}'], TFDS_DATA_DIR=str(folder / 'data')))
        recoveries, end = [], time.monotonic() + 60 * _MINUTES.value
        while time.monotonic() < end:
            for name, fault in soak.faults():
                time.sleep(_SECONDS_BETWEEN_FAULTS - time.monotonic() % _SECONDS_BETWEEN_FAULTS)
                if time.monotonic() < end:
                    recoveries.append(soak.recovery(name, fault))
                    print(*_row(recoveries[-1]), flush=True)
        slurm.command('scancel', '--batch', '--signal=USR1', soak.job)
        slurm.wait_for_state(soak.job, 'PENDING')
        step = int(re.findall(r'Stopped by SIGUSR1 at step (\d+)', slurm.output(soak.job))[-1])
        slurm.command('scancel', soak.job)
        is_same = save_moments.values(str(disk / f'logs/train/ckpt-{step}')) == save_moments.values(
            str(_reference(slurm, folder, step)))
    common.report(
        common.Table(['fault', 'resumed after s', 'work lost s', 'at step', 'MiB', 'open files'], map(_row, recoveries)),
        f'The weights of step {step} are {"" if is_same else "NOT "}those of a run without faults, bit for bit.')


if __name__ == '__main__':
    app.run(main)
