"""Commands that crash are started again, those that end or are stopped are not; none outlives its supervisor."""

import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import pytest

from lingpipe.cluster import child_process, supervisor

ROOT = pathlib.Path(__file__).parents[2]
# Appends a line for each start, then does what the line of that number says; 'checkpoint' leaves a newer one behind.
CHILD = '''
import os, pathlib, signal, sys, time
with open('starts', 'a') as file: print(os.getpid(), file=file)
number = len(open('starts').readlines())
for word in sys.argv[1:][min(number, len(sys.argv) - 1) - 1].split('+'):
    if word == 'checkpoint': pathlib.Path(f'ckpt-{number}.index').touch()
    elif word == 'beat':
        from lingpipe.cluster import child_process
        child_process.beat_for_parent(); time.sleep(2)
    elif word == 'wait':
        print('waiting', flush=True); time.sleep(60)
    elif word.startswith('SIG'): os.kill(os.getpid(), getattr(signal, word))
    else: sys.exit(int(word))
'''
SUPERVISOR = '''
import sys
from lingpipe.cluster import supervisor
code = supervisor.Supervisor([sys.executable, '-c', *sys.argv[2:]], int(sys.argv[1]), '.', first_pause=.01, silence_seconds=5).run()
assert 'tensorflow' not in sys.modules
sys.exit(code)
'''


@pytest.fixture(name='start')
def start_fixture(tmp_path):
    def start(max_restarts, *script):
        return subprocess.Popen(
            [sys.executable, '-c', SUPERVISOR, str(max_restarts), CHILD, *script], cwd=tmp_path, text=True,
            env={**os.environ, 'PYTHONPATH': str(ROOT)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    return start


@pytest.fixture(name='run_here')
def run_here_fixture(tmp_path, monkeypatch):
    """Returns a function that supervises a child from this process, and returns its exit code and the number of its
    starts."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv('PYTHONPATH', str(ROOT))

    def run_here(max_restarts, script, checkpoints='.', begin_seconds=0):
        code = supervisor.Supervisor([sys.executable, '-c', CHILD, *script], max_restarts, checkpoints,
                                     first_pause=.01, begin_seconds=begin_seconds).run()
        starts = tmp_path / 'starts'
        return code, len(starts.read_text().splitlines()) if starts.exists() else 0

    return run_here


@pytest.mark.parametrize('max_restarts, script, code, starts', [
    (3, ['0'], 0, 1), (3, ['1'], 1, 1), (3, ['75', '0'], 0, 2), (3, ['SIGKILL', 'SIGSEGV', '75', '0'], 0, 4),
    (2, ['75'], 75, 3), (1, ['SIGABRT'], 128 + signal.SIGABRT, 2), (3, ['SIGTERM'], 128 + signal.SIGTERM, 1),
    (1, ['75', 'checkpoint+75', '75', '75'], 75, 3),
    (1, ['checkpoint+75', 'checkpoint+75', 'checkpoint+SIGKILL', '0'], 0, 4)])
def test_faults_that_a_restart_can_mend_are_followed_by_one(start, tmp_path, max_restarts, script, code, starts):
    process = start(max_restarts, *script)
    _, err = process.communicate(timeout=30)
    assert process.returncode == code, err
    assert len((tmp_path / 'starts').read_text().splitlines()) == starts


def test_each_restart_is_reported_in_one_line(start):
    _, err = start(2, 'SIGKILL', 'checkpoint+75', '75').communicate(timeout=30)
    assert err.splitlines() == [
        '[supervisor] The training was ended by SIGKILL; restart 1 of 2 in 0.01 s; there is no checkpoint yet.',
        '[supervisor] The training ended with exit code 75; restart 1 of 2 in 0.01 s; the newest checkpoint is that of step 2.',
        '[supervisor] The training ended with exit code 75; restart 2 of 2 in 0.02 s; the newest checkpoint is that of step 2.',
        '[supervisor] The training ended with exit code 75; 2 restarts brought no new checkpoint, so it is not restarted.']


def test_a_child_that_is_stopped_is_killed_and_restarted(start, tmp_path):
    _, err = start(1, 'beat+SIGSTOP', 'beat+0').communicate(timeout=60)
    assert err.splitlines() == [
        '[supervisor] The training gave no sign of life for 5 s and is killed.',
        '[supervisor] The training was ended by SIGKILL; restart 1 of 1 in 0.01 s; there is no checkpoint yet.']
    assert len((tmp_path / 'starts').read_text().splitlines()) == 2


def test_a_child_that_hangs_before_its_first_heartbeat_is_restarted(run_here, capfd):
    code, starts = run_here(5, ['SIGSTOP', '0'], begin_seconds=3)
    assert code == 0 and starts >= 2
    assert capfd.readouterr().err.startswith('[supervisor] The training gave no sign of life for 3 s and is killed.\n')


@pytest.mark.parametrize('number', [signal.SIGTERM, signal.SIGINT])
def test_signals_are_passed_on_and_end_it(start, tmp_path, number):
    process = start(3, 'wait')
    assert process.stdout.readline() == 'waiting\n'
    process.send_signal(number)
    process.communicate(timeout=30)
    assert process.returncode in (128 + number, 1)  # Python turns SIGINT into an exception
    assert len((tmp_path / 'starts').read_text().splitlines()) == 1


def test_a_machine_that_sees_no_checkpoints_counts_anew_after_a_long_life(run_here, monkeypatch):
    monkeypatch.setattr(supervisor, '_LONG_LIFE', 2)
    lives = ['75', '75', 'beat+75', '75', '75', '0']  # the third lasts two seconds
    assert run_here(2, lives, checkpoints='folder_of_another_machine') == (75, 5)


def test_a_folder_that_does_not_answer_keeps_nobody_waiting(run_here, monkeypatch, capfd):
    does_answer = threading.Event()
    monkeypatch.setattr(supervisor, '_SECONDS_TO_LOOK', .1)
    monkeypatch.setattr(supervisor, '_names_in', lambda folder: does_answer.wait(60))
    assert run_here(2, ['75', '0']) == (0, 2)
    does_answer.set()
    assert 'cannot be read now (no answer in 0.1 s).' in capfd.readouterr().err


def test_a_folder_that_cannot_be_read_now_keeps_what_is_known(run_here, monkeypatch, capfd):
    def outage(folder):
        raise OSError('503')

    monkeypatch.setattr(supervisor, '_names_in', outage)
    assert run_here(1, ['75', '0'], checkpoints='gs://bucket/logs/train') == (0, 2)
    assert 'gs://bucket/logs/train cannot be read now (503).' in capfd.readouterr().err


def test_a_signal_that_comes_while_the_child_is_started_reaches_it(run_here, monkeypatch):
    start = child_process.start

    def start_after_a_signal(*arguments, **options):
        os.kill(os.getpid(), signal.SIGTERM)
        return start(*arguments, **options)

    monkeypatch.setattr(child_process, 'start', start_after_a_signal)
    assert run_here(3, ['wait'])[0] == 128 + signal.SIGTERM


@pytest.mark.skipif(sys.platform != 'linux', reason='only Linux kills children with their parent')
def test_the_child_dies_with_a_supervisor_that_is_killed(start, tmp_path):
    process = start(3, 'wait')
    assert process.stdout.readline() == 'waiting\n'
    process.kill()
    process.communicate(timeout=30)  # ends when the child, which holds the other end of the pipes, does
    child = int((tmp_path / 'starts').read_text())
    for _ in range(100):
        if not os.path.exists(f'/proc/{child}'):
            return
        time.sleep(.1)
    pytest.fail('The child still runs.')


# Says whether it was on standby, and leaves the rest to one that was.
STANDBY = '''
import os, pathlib, sys, time
from lingpipe.cluster import child_process
was_on_standby = child_process.is_standby()
pathlib.Path(f'there_{was_on_standby}').touch()
child_process.wait_for_turn()
with open('begun', 'a') as file: print(was_on_standby, file=file)
while not os.path.exists('there_True'): time.sleep(.05)
sys.exit(0 if was_on_standby else 75)
'''


def test_a_child_on_standby_takes_the_place_of_one_that_crashed(run_here, monkeypatch, tmp_path):
    """It has started while the other one worked, and begins when that has ended."""
    monkeypatch.setattr(supervisor, '_SECONDS_TO_STANDBY', 0)
    code = supervisor.Supervisor(
        [sys.executable, '-c', STANDBY], 1, '.', first_pause=.01, keeps_standby=True).run()
    assert (code, (tmp_path / 'begun').read_text()) == (0, 'False\nTrue\n')
