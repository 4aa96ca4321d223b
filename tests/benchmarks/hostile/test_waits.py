"""Who waits is ended; who computes is not, however long it takes on a busy machine."""

import signal
import subprocess
import sys

import pytest

from benchmarks.hostile import waits


@pytest.fixture(name='start')
def start_fixture():
    """Returns a function that starts a program of Python."""
    started = []

    def start(program):
        started.append(subprocess.Popen([sys.executable, '-Sc', f'print(flush=True)\n{program}'], stdout=subprocess.PIPE))
        started[-1].stdout.readline()
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.parametrize('program', [
    'import time; time.sleep(60)', 'import threading; lock = threading.Lock(); lock.acquire(); lock.acquire()',
    'import time; [time.sleep(0.2) for _ in range(300)]'])
def test_a_process_that_waits_is_ended(program, start):
    process = start(program)
    with waits.limited(process.pid, 0.5):
        assert process.wait(30) == -signal.SIGALRM


def test_a_process_that_computes_is_not_ended_on_a_busy_machine(start):
    processes = [start('while True: pass') for _ in range(6)]
    with waits.limited(processes[0].pid, 0.5):
        with pytest.raises(subprocess.TimeoutExpired):
            processes[0].wait(2)
    assert all(process.poll() is None for process in processes)


def test_a_process_may_wait_after_its_scope(start):
    process = start('import time; time.sleep(60)')
    with waits.limited(process.pid, 0.5):
        pass
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(1)
