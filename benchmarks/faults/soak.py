"""Injects random faults into a cluster for an hour, and checks the weights that it ends with.

    python -m benchmarks.faults.soak --cluster=pipeline --minutes=60
    python -m benchmarks.faults.soak --cluster=parameter_server --minutes=60
    python -m benchmarks.faults.soak --elastic
    python -m benchmarks.faults.soak --kinds=kill,hang

Synchronous training must end with the same bits as an undisturbed run of as many steps on one machine. Asynchronous
training must find the true weights of the linear regression, to 0.02.

Faults of the disk and the network need Linux and root: the log directory gets a small disk of its own. A run that
ended because its disk was full is started again once there is space, as a person would do it. Nothing else needs help.
"""

import collections
import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time

from absl import app, flags

from benchmarks.faults import broken_machine, process_use, save_moments, struck_training
from benchmarks.support import common

_CLUSTER = flags.DEFINE_enum('cluster', struck_training.PIPELINE, list(struck_training.CLUSTERS), 'As run.py takes it.')
_MINUTES = flags.DEFINE_float('minutes', 60., 'How long to train.', lower_bound=0.)
_FAULT_EVERY = flags.DEFINE_float('fault_every_seconds', 60., 'Seconds between two faults.', lower_bound=1.)
_ELASTIC = flags.DEFINE_bool('elastic', False, 'Lose machines too: training continues without them until they are back.')
flags.register_multi_flags_validator(
    ['cluster', 'elastic'], lambda given: not given['elastic'] or given['cluster'] == struck_training.PIPELINE,
    '--elastic is for --cluster=pipeline.')
_SEED = flags.DEFINE_integer('seed', 0, 'Another seed, other faults.')
_MAX_RESTARTS = 20
_STEP_TIMEOUT_SECONDS = 20
_PATIENCE = 2  # seconds, as --replace_after_seconds of run.py
_SECONDS_WITHOUT_SPACE = 20
_SECONDS_TO_TELL = 5  # of a save that began without space
_LONGEST_DELAY, _LONGEST_CUT = 40, 40  # seconds: some longer than a step may take, some not
_SAMPLE_SECONDS = 5
_FEWEST_SAMPLES = 12
_TOLERANCE = 0.02
_RESTART = re.compile(r'\[supervisor\].* restart \d+ of')
_LEFT_OUT, _TAKEN_IN = re.compile(r'(has|did) not answer(ed)? for'), re.compile('again: training continues over')
_NO_SPACE = r'^\[chief\] Error: .*No space left on device'
_WORN = re.compile(r'restarts, to free what TensorFlow keeps')


def _kill(training, disk, choice):
    _signal(training, choice, signal.SIGKILL)


def _lose_machine(training, disk, choice):
    """Kills a worker and its supervisor; the launcher starts them again after 5 seconds."""
    with contextlib.suppress(ProcessLookupError):  # about to be started again
        os.kill(training.supervisor(choice.choice([task for task in training.tasks if task != training.chief])),
                signal.SIGKILL)


def _hang(training, disk, choice):
    _signal(training, choice, signal.SIGSTOP)


def _signal(training, choice, number):
    child = training.child(choice.choice(training.tasks))
    if child is not None:  # else it is about to be restarted
        os.kill(child, number)


def _slow_disk(training, disk, choice):
    disk.delay_writes(choice.uniform(1, _LONGEST_DELAY))


def _full_disk(training, disk, choice):
    first = len(training.lines)
    disk.fill()
    training.wait_for(_NO_SPACE, first, _SECONDS_WITHOUT_SPACE)
    disk.free()
    if training.wait_for(_NO_SPACE, first, _SECONDS_TO_TELL) is not None:
        training.exit_code()  # once all processes have ended
    _start_again(training, first)


def _start_again(training, first):
    """Starts a run again that ended for want of space, which it said from a line on, and waits for its first step."""
    if not training.is_running() and any(re.search(_NO_SPACE, line) for _, line in training.lines[first:]):
        begin = len(training.lines)
        training.start()
        training.wait_for(rf'^\[{training.chief}\] step ', begin)


def _cut_network(training, disk, choice):
    broken_machine.cut_network(training.supervisor(training.chief), choice.uniform(1, _LONGEST_CUT))


_FAULTS = {'kill': _kill, 'hang': _hang, 'slow disk': _slow_disk, 'full disk': _full_disk,
           'network cut': _cut_network}
_WITHOUT_ROOT = ('kill', 'hang')
_CHOSEN = flags.DEFINE_list('kinds', list(_FAULTS), 'Kinds of faults.')
flags.register_validator(_CHOSEN, lambda kinds: set(kinds) <= set(_FAULTS), f'Choose among {", ".join(_FAULTS)}.')
_MACHINE_LOST = 'machine lost'


def _strike_now_and_then(training, disk):
    """Injects faults until the time is over or the training run ends; returns their names."""
    choice, faults = random.Random(_SEED.value), []
    end = time.monotonic() + 60 * _MINUTES.value
    while training.is_running() and time.monotonic() + _FAULT_EVERY.value < end:
        next_fault, first = time.monotonic() + _FAULT_EVERY.value, len(training.lines)
        faults.append(choice.choice([*_CHOSEN.value, *[_MACHINE_LOST] * _ELASTIC.value]))
        print(f'{faults[-1]}; last step {training.steps()[-1:]}', file=sys.stderr, flush=True)
        (_FAULTS | {_MACHINE_LOST: _lose_machine})[faults[-1]](training, disk, choice)
        time.sleep(max(0., next_fault - time.monotonic()))
        _start_again(training, first)
    return faults


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
        verdict = 'right' if difference <= _TOLERANCE else 'WRONG'
        return f'{verdict}: weights differ from the true ones by {difference:.4f} at most'
    _train_undisturbed(training.cluster, f'{folder}/undisturbed', step)
    other = save_moments.different(found, f'{folder}/undisturbed/train/ckpt-{step}')
    return f'WRONG: {", ".join(other)} differ' if other else 'right: the same bits as an undisturbed training'


def _difference_from_truth(training, step):
    """Trains no further step, but prints the table of found and true weights."""
    printed = _train_undisturbed(training.cluster, training.logdir, step)
    return float(re.search(r'Largest difference ([\d.]+)\.', printed)[1])


def _train_undisturbed(cluster, logdir, max_steps):
    """Trains on one machine from the newest checkpoint of a folder; returns what that prints."""
    changes = f'train.max_steps={max_steps}; train.save_interval_seconds=600; input.pause_milliseconds=0'
    command = [sys.executable, *struck_training.training_command(cluster, logdir), f'--model_params_override={changes}']
    return subprocess.run(command, env=struck_training.environment(), check=True, stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL,
                          text=True).stdout


def _growth(use):
    """Returns in words how much memory and files of a task grew from the second sixth of the time to the last one."""
    length = len(use.samples) // 6
    if length < _FEWEST_SAMPLES:
        return ['-', '-']
    return [f'{growth:+.1%}' for growth in use.growth(length, length)]


def _soaked(training, disk, folder):
    """Returns the row of the table, and the names of the faults."""
    training.start()
    training.wait_for(rf'^\[{training.chief}\] step ')
    with process_use.ProcessUse(training, _SAMPLE_SECONDS) as use:
        faults = _strike_now_and_then(training, disk)
    ended_early = not training.is_running()
    steps_again = training.wait_for(rf'^\[{training.chief}\] step ', len(training.lines)) is not None
    code = training.stop()
    if ended_early or code or not steps_again:
        raise RuntimeError('\n'.join([
            f'The training run ended too early, or did not resume after the last fault; exit code {code}.',
            *[line for _, line in training.lines[-60:]]]))
    return [_CLUSTER.value, f'{_MINUTES.value:g}', len(faults), _count(training, _RESTART), training.checkpoints()[-1],
            _steps_lost(training), len(struck_training.left_over()), *_growth(use), _result(training, folder)], faults


def _count(training, pattern):
    return sum(bool(pattern.search(line)) for _, line in training.lines)


def _is_with_disk():
    return not set(_CHOSEN.value) <= set(_WITHOUT_ROOT)


def main(unused_argv):
    if _is_with_disk():
        broken_machine.enter_own_mounts('benchmarks.faults.soak', sys.argv[1:])
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        logdir = f'{folder}/struck'
        disk = stack.enter_context(broken_machine.Disk(logdir)) if _is_with_disk() else None
        training = struck_training.StruckTraining(
            _CLUSTER.value, logdir, _MAX_RESTARTS, _STEP_TIMEOUT_SECONDS, _PATIENCE * _ELASTIC.value)
        row, faults = _soaked(training, disk, folder)
    common.report(
        common.markdown_table(
            ['--cluster', 'minutes', 'faults', 'restarts', 'steps', 'steps lost', 'processes left', 'memory', 'files',
             'weights'], [row]),
        f'A fault every {_FAULT_EVERY.value:g} s: '
        f'{", ".join(f"{name} {times} times" for name, times in collections.Counter(faults).items())}. '
        f'Restarts of workers and servers after three lost chiefs: {_count(training, _WORN)}. '
        f'Workers left out: {_count(training, _LEFT_OUT)} times; taken in again: {_count(training, _TAKEN_IN)} times.')


if __name__ == '__main__':
    app.run(main)
