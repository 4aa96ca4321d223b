"""Kills a training run at random moments and at chosen moments of its saves, and checks what remains.

    python -m benchmarks.faults.killed_saves --kills=100 --at_each_moment=7

The run saves as often as it can. Each start first reads all checkpoints of the list, so that TensorFlow verifies their
checksums, and resumes from the newest. At the end the run continues to a multiple of 100 steps, and its checkpoint is
compared, bit for bit, with that of a run that was never disturbed. The files that a kill leaves show at which moment a
random one came, and confirm each chosen moment.
"""

import os
import pathlib
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback

from absl import app, flags, logging

from benchmarks.faults import save_moments, wide_regression
from benchmarks.support import common
from lingpipe.devices import device_kinds
from lingpipe.training import checkpoints, trainer

_KILLS = flags.DEFINE_integer('kills', 100, 'How often to kill in all, or more if --at_each_moment asks for it.')
_AT_EACH_MOMENT = flags.DEFINE_integer('at_each_moment', 7, 'How many of them come at each moment of a save.')
_SECONDS = flags.DEFINE_float('seconds', 1., 'Longest time between the first save of a start and a random kill.')
_SEED = flags.DEFINE_integer('seed', 0, 'Another seed, other moments.')


def _params(**train):
    model = wide_regression.WideStages()
    params = model.Model()
    params.Define('input', model.Train(), '')
    params.train.Set(**train)
    return params


def _train(folder, **train):
    """Run in a process of its own, and end it."""
    code = 1
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        save_moments.require_whole(folder / 'train')
        save_moments.obey(folder)
        device_kinds.use_virtual_devices(2)
        trainer.Trainer(_params(**train), {}, str(folder)).run()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _start(folder, **train):
    """Return the number of a process that trains; TensorFlow has done nothing here yet that a copy would lack."""
    return os.fork() or _train(folder, **train)


def _train_to_the_end(folder, **train):
    _, status = os.waitpid(_start(folder, **train), 0)
    if status:
        raise RuntimeError(f'A training run ended with status {status}; the lines above say why.')


def _kill(folder, choose, moment):
    """Kill a training run at one of save_moments.MOMENTS, or at a random one (None); return it, as the files tell it."""
    before, process = save_moments.names_in(folder / 'train'), _started(folder)
    time.sleep(choose.uniform(0, _SECONDS.value))
    if moment is None:
        os.kill(process, signal.SIGKILL)
    elif moment == save_moments.VALUES:
        save_moments.kill_while_it_writes(process, choose)
    else:
        save_moments.ask(folder, moment)
    os.waitpid(process, 0)
    if moment is None:
        return save_moments.left(folder / 'train', before)
    save_moments.require_moment(moment, folder / 'train', before)
    return moment


def _started(folder):
    """Return the number of a process that trains and has written its first checkpoint."""
    listed, process = save_moments.listed_in(folder / 'train'), _start(folder)
    while save_moments.listed_in(folder / 'train') == listed:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            raise RuntimeError(f'A training run ended with status {status} where it should resume from one of {sorted(listed)}.')
        time.sleep(.01)
    return process


def _plan(choose):
    """Return a list of moments, where None is a random one, in random order."""
    chosen = [moment for moment in save_moments.MOMENTS for _ in range(_AT_EACH_MOMENT.value)]
    plan = chosen + [None] * (_KILLS.value - len(chosen))
    choose.shuffle(plan)
    return plan


def _rows(plan, moments):
    """Return a row for each moment: how often it was chosen, and how often it came at random."""
    chosen = [moment for moment in plan if moment]
    by_chance = [moment for moment, planned in zip(moments, plan) if not planned]
    rows = [[moment, chosen.count(moment), '' if moment in save_moments.TOLD_BY_NO_FILE else by_chance.count(moment)]
            for moment in save_moments.MOMENTS]
    return [*rows, [save_moments.ELSE, '', by_chance.count(save_moments.ELSE)]]


def main(unused_argv):
    logging.set_verbosity(logging.ERROR)
    choose, folder = random.Random(_SEED.value), pathlib.Path(tempfile.mkdtemp())
    plan = _plan(choose)
    try:
        moments = [_kill(folder / 'killed', choose, moment) for moment in plan]
        mib = sum(map(len, save_moments.values(checkpoints.complete(folder / 'killed/train')[0]).values())) / 2**20
        steps, different = save_moments.differences(folder, _train_to_the_end)
        unlisted = save_moments.unlisted(folder / 'killed/train')
    finally:
        shutil.rmtree(folder)
    common.report(
        common.Table(['killed', 'times, chosen', 'times, at random'], _rows(plan, moments)),
        f'{len(moments)} kills of a run of {steps} steps, whose checkpoints have {mib:.0f} MiB. Every listed '
        f'checkpoint was whole. {save_moments.verdict(different, unlisted)}')


if __name__ == '__main__':
    app.run(main)
