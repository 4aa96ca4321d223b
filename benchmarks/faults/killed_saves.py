"""Kills a training run at random moments, most of which are in a save, and checks what remains.

    python -m benchmarks.faults.killed_saves --kills=100

The run saves as often as it can. Each start first reads all that the list of checkpoints names, whose values TensorFlow
keeps checksums of, and resumes from the newest. At the end the run continues to a multiple of 100 steps, and its
checkpoint is compared, bit for bit, with that of a run that was never disturbed.
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

import keras
import tensorflow as tf
from absl import app, flags, logging

from benchmarks.support import common
from lingpipe import layers
from lingpipe.devices import device_kinds
from lingpipe.training import checkpoints, trainer
from params import linear_regression

_KILLS = flags.DEFINE_integer('kills', 100, 'How often to kill.', lower_bound=1)
_SECONDS = flags.DEFINE_float('seconds', 1., 'Longest time between the first save of a start and the kill.')
_WIDTH = flags.DEFINE_integer('width', 512, 'Width of the nine layers of the model.', lower_bound=1)
_SEED = flags.DEFINE_integer('seed', 0, 'Another seed, other moments.')
_MANY_STEPS, _ROUND_STEPS = 10**7, 100
_VALUES, _INDEX, _ELSE = MOMENTS = ('while values are written', 'between index and list', 'else: steps, copies, list')


def _params(max_steps, **train):
    model = linear_regression.EightWeights()
    params = model.Model()
    params.Define('input', model.Train(), '')
    dense = layers.KerasParams(keras.layers.Dense, units=_WIDTH.value, activation='relu')
    params.task.body.Set(num_partitions=2, num_micro_batches=2, layers=[
        *[dense] * 8, layers.KerasParams(keras.layers.Dense, units=1)])
    params.train.Set(
        max_steps=max_steps, learning_rate=1e-4, optimizer=layers.KerasParams(keras.optimizers.Adam), steps_per_loop=1,
        summary_interval_steps=0, **train)
    return params


def _train(folder, max_steps, **train):
    """Runs in a process of its own, and ends it."""
    code = 1
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        for path in checkpoints.complete(folder / 'train'):
            _values(path)
        device_kinds.use_virtual_devices(2)
        trainer.Trainer(_params(max_steps, **train), {}, str(folder)).run()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _values(path):
    """Returns {name: bytes}; raises what TensorFlow does where a value is not whole."""
    reader = tf.train.load_checkpoint(path)
    return {name: reader.get_tensor(name).tobytes() for name in reader.get_variable_to_shape_map()
            if name.endswith('VARIABLE_VALUE') and not name.startswith('save_counter')}


def _start(*arguments, **train):
    """Returns the number of a process that trains; TensorFlow has done nothing here yet that a copy would lack."""
    return os.fork() or _train(*arguments, **train)


def _wait(process):
    _, status = os.waitpid(process, 0)
    if status:
        raise RuntimeError(f'A training run ended with status {status}; the lines above say why.')


def _kill(folder, choose):
    """Returns in which of MOMENTS a training run was killed."""
    before, process = _newest(folder), _start(folder, _MANY_STEPS, save_interval_seconds=0.0)
    while _newest(folder) == before:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            raise RuntimeError(f'A training run ended with status {status} where it should resume from {before}.')
        time.sleep(.01)
    time.sleep(choose.uniform(0, _SECONDS.value))
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    return _moment(folder / 'train')


def _newest(folder):
    """Returns the newest path of the list, without a look at its files."""
    state = tf.train.get_checkpoint_state(str(folder / 'train'))
    return state and state.model_checkpoint_path


def _moment(folder):
    listed = set(map(os.path.basename, checkpoints.complete(folder)))
    if any(folder.glob('ckpt-*_temp')):
        return _VALUES
    return _ELSE if {path.stem for path in folder.glob('ckpt-*.index')} <= listed else _INDEX


def _differences(folder):
    """Returns how many steps there were, and the names of variables that are not those of an undisturbed run."""
    newest = checkpoints.step_of(checkpoints.complete(folder / 'killed/train')[0])
    steps = (newest // _ROUND_STEPS + 1) * _ROUND_STEPS
    for name in ('killed', 'undisturbed'):
        _wait(_start(folder / name, steps, save_interval_seconds=600.0))
    killed, undisturbed = (_values(str(folder / name / f'train/ckpt-{steps}')) for name in ('killed', 'undisturbed'))
    assert killed.keys() == undisturbed.keys()
    return steps, [name for name in killed if killed[name] != undisturbed[name]]


def main(unused_argv):
    logging.set_verbosity(logging.ERROR)
    choose, folder = random.Random(_SEED.value), pathlib.Path(tempfile.mkdtemp())
    try:
        moments = [_kill(folder / 'killed', choose) for _ in range(_KILLS.value)]
        mib = sum(map(len, _values(checkpoints.complete(folder / 'killed/train')[0]).values())) / 2**20
        steps, different = _differences(folder)
    finally:
        shutil.rmtree(folder)
    common.report(
        common.markdown_table(['killed', 'times'], [[moment, moments.count(moment)] for moment in MOMENTS]),
        f'{len(moments)} kills of a run of {steps} steps, whose checkpoints have {mib:.0f} MiB. Every listed checkpoint '
        'was whole. '
        + (f'WRONG at the end: {", ".join(different)}.' if different else
           'At the end all values are those of an undisturbed run, bit for bit.'))


if __name__ == '__main__':
    app.run(main)
