"""Trains for a while as one process of the cluster after the other is killed, and looks whether the right weights come
out.

    python -m benchmarks.faults.soak --cluster=pipeline --minutes=30 --kill_every_seconds=120
    python -m benchmarks.faults.soak --cluster=parameter_server --minutes=30 --kill_every_seconds=120

Right are, where the training is synchronous, the bits of a checkpoint of an undisturbed training of as many steps on
this machine alone; with parameter servers and asynchronous updates the true weights of the linear regression, to 0.02.
"""

import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time

import tensorflow as tf
from absl import app, flags

from benchmarks.faults import struck_training
from benchmarks.support import common

_CLUSTER = flags.DEFINE_enum('cluster', struck_training.PIPELINE, list(struck_training.CLUSTERS), 'As run.py takes it.')
_MINUTES = flags.DEFINE_float('minutes', 30., 'How long to train.', lower_bound=0.)
_KILL_EVERY = flags.DEFINE_float('kill_every_seconds', 120., 'Seconds between two kills.', lower_bound=1.)
_SEED = flags.DEFINE_integer('seed', 0, 'Another seed, other processes are killed.')
_MAX_RESTARTS = 20
_STEP_TIMEOUT_SECONDS = 60
_TOLERANCE = 0.02
_RESTART = re.compile(r'\[supervisor\].* restart \d+ of')


def _kill_now_and_then(training):
    """Returns how many processes were killed until the time was over, or the training."""
    choose, kills = random.Random(_SEED.value).choice, []
    end = time.monotonic() + 60 * _MINUTES.value
    while training.is_running() and time.monotonic() + _KILL_EVERY.value < end:
        time.sleep(_KILL_EVERY.value)
        task = choose(training.tasks)
        child = training.child(task)
        if child is not None:  # else it is about to be started again
            os.kill(child, signal.SIGKILL)
            kills.append(task)
            print(f'{task} killed; last step {training.steps()[-1:]}', file=sys.stderr, flush=True)
    return kills


def _steps_lost(training):
    """Returns the number of steps that had to be done again, over all restarts."""
    lost, first = 0, 0
    for number, step in training.starts():
        before = training.steps(first, number)
        lost += max(0, before[-1][1] - step) if before else 0
        first = number
    return lost


def _result(training, folder):
    """Returns in words whether the weights are right."""
    step = training.checkpoints()[-1]
    found = f'{training.logdir}/train/ckpt-{step}'
    if training.cluster == struck_training.PARAMETER_SERVER:
        difference = _difference_from_truth(training, step)
        return f'{"right" if difference <= _TOLERANCE else "WRONG"}: weights differ from the true ones by {difference:.4f} at most'
    _train_undisturbed(training.cluster, f'{folder}/undisturbed', step)
    other = _different_variables(found, f'{folder}/undisturbed/train/ckpt-{step}')
    return f'WRONG: {", ".join(other)} differ' if other else 'right: the same bits as an undisturbed training'


def _difference_from_truth(training, step):
    """Trains no further step, but prints the table of found and true weights."""
    printed = _train_undisturbed(training.cluster, training.logdir, step)
    return float(re.search(r'Largest difference ([\d.]+)\.', printed)[1])


def _train_undisturbed(cluster, logdir, max_steps):
    """Returns what a training on this machine alone prints, which goes on from what is there."""
    changes = f'train.max_steps={max_steps}; train.save_interval_seconds=600; input.pause_milliseconds=0'
    command = [sys.executable, *struck_training.training_command(cluster, logdir), f'--model_params_override={changes}']
    return subprocess.run(command, env=struck_training.environment(), check=True, stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL,
                          text=True).stdout


def _different_variables(first, second):
    readers = [tf.train.load_checkpoint(path) for path in (first, second)]
    names = [{name for name in reader.get_variable_to_shape_map()
              if name.endswith('VARIABLE_VALUE') and 'save_counter' not in name}
             for reader in readers]
    same = {name for name in names[0] & names[1]
            if readers[0].get_tensor(name).tobytes() == readers[1].get_tensor(name).tobytes()}
    return sorted((names[0] | names[1]) - same)


def main(unused_argv):
    with tempfile.TemporaryDirectory() as folder:
        training = struck_training.StruckTraining(
            _CLUSTER.value, f'{folder}/struck', _MAX_RESTARTS, _STEP_TIMEOUT_SECONDS)
        training.start()
        kills = _kill_now_and_then(training)
        ended_early = not training.is_running()
        steps_again = training.wait_for(rf'^\[{training.chief}\] step ',
                                        len(training.lines)) is not None  # after the last kill
        code = training.stop()
        if ended_early or code or not steps_again:
            raise RuntimeError('\n'.join(['The training run ended too early, or did not resume after the last kill; exit '
                                          f'code {code}.', *[line for _, line in training.lines[-30:]]]))
        restarts = sum(bool(_RESTART.search(line)) for _, line in training.lines)
        row = [_CLUSTER.value, f'{_MINUTES.value:g}', len(kills), restarts, training.checkpoints()[-1],
               _steps_lost(training),
               len(struck_training.left_over()), _result(training, folder)]
    killed = ', '.join(f'{task} {kills.count(task)} times' for task in training.tasks)
    common.report(
        common.markdown_table(
            ['--cluster', 'minutes', 'kills', 'restarts', 'steps', 'steps lost', 'processes left', 'weights'], [row]),
        f'A kill every {_KILL_EVERY.value:g} s: {killed}.')


if __name__ == '__main__':
    app.run(main)
