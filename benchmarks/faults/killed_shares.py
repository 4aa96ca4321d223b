"""Kills processes of a pipeline on two workers while each writes its share of a checkpoint, and checks what remains.

    python -m benchmarks.faults.killed_shares --times=3

A chief and two workers on this machine save into one folder as often as they can. Each worker writes its partition's
values. The chief writes the step and, at the end, the list. Each start of the chief first reads all listed checkpoints,
so TensorFlow verifies their checksums. At the end the run continues to a multiple of 100 steps, and its checkpoint is
compared, bit for bit, with that of an undisturbed run of such a cluster.
"""

import os
import pathlib
import random
import sys
import tempfile

from absl import app, flags

from benchmarks.faults import restarted_cluster, save_moments
from benchmarks.support import common
from lingpipe.training import checkpoints

_TIMES = flags.DEFINE_integer('times', 3, 'How often to kill each process at each moment.', lower_bound=1)
_SEED = flags.DEFINE_integer('seed', 0, 'Another seed, other moments while a share is written.')
_NUM_SHOWN = 30
_WHOLE = 'listed checkpoints are whole'
KILLS = [(task, save_moments.VALUES) for task in ('worker 0', 'worker 1')] + [
    ('chief', moment) for moment in save_moments.MOMENTS if moment != save_moments.VALUES]


def _training(folder, **train):
    """Return a `RestartedCluster` that trains into a folder, with these fields of params.train."""
    override = '; '.join(f'train.{name}={value}' for name, value in train.items())
    words = [save_moments.__file__, '--model=benchmarks.faults.wide_regression', f'--logdir={folder}', '--device=cpu',
             *[f'--model_params_override={override}'] * bool(override)]
    return restarted_cluster.RestartedCluster(words, dict(os.environ))


def _kill(folder, training, choose, task, moment):
    """Kill the process of a task at a moment, and wait until training resumes and has written a checkpoint."""
    first, before = len(training.lines), save_moments.names_in(f'{folder}/train')
    if moment == save_moments.VALUES:
        save_moments.kill_while_it_writes(training.process_of(task), choose)
    else:
        save_moments.ask(folder, moment)
    save_moments.require_moment(moment, f'{folder}/train', before)
    _await_save(folder, training, first)
    print(f'{task} was killed {moment}.', file=sys.stderr, flush=True)


def _await_save(folder, training, first):
    """Wait until the chief has started, and its first checkpoint is listed."""
    number = training.wait_for(_WHOLE, first)
    if number is None:
        raise RuntimeError('\n'.join(['The chief did not start.', *_last_lines(training)]))
    listed = save_moments.listed_in(f'{folder}/train')
    save_moments.wait_until(lambda: save_moments.listed_in(f'{folder}/train') != listed, 'a checkpoint is listed')


def _last_lines(training):
    return training.lines[-_NUM_SHOWN:]


def _train_to_the_end(folder, **train):
    training = _training(folder, **train)
    training.start()
    if training.exit_code():
        raise RuntimeError('\n'.join(['A run did not end well.', *_last_lines(training)]))


def _num_shares(folder):
    """Return how many files hold the values of the newest checkpoint."""
    newest = pathlib.Path(checkpoints.complete(f'{folder}/killed/train')[0])
    return len(list(newest.parent.glob(f'{newest.name}.data-*')))


def main(unused_argv):
    choose = random.Random(_SEED.value)
    kills = KILLS * _TIMES.value
    with tempfile.TemporaryDirectory() as folder:
        training = _training(f'{folder}/killed')
        try:
            training.start()
            _await_save(f'{folder}/killed', training, 0)
            for task, moment in kills:
                _kill(f'{folder}/killed', training, choose, task, moment)
        finally:
            training.stop()
        num_shares = _num_shares(folder)
        num_whole = sum(_WHOLE in line for line in training.lines)
        steps, different = save_moments.differences(pathlib.Path(folder), _train_to_the_end)
        unlisted = save_moments.unlisted(f'{folder}/killed/train')
    common.report(
        common.Table(['killed', 'moment', 'times'], [[*kill, kills.count(kill)] for kill in KILLS]),
        f'{len(kills)} kills of a run of {steps} steps, whose checkpoints have {num_shares} shares. Every listed '
        f'checkpoint was whole at {num_whole} starts of the chief. {save_moments.verdict(different, unlisted)}')


if __name__ == '__main__':
    app.run(main)
