"""Calls that return are left alone; one that does not is told of, with the tasks that do not answer."""

import itertools
import subprocess
import sys
import threading
import time

import pytest

from lingpipe.cluster import cluster_config, waits, watchdog


@pytest.fixture(name='told')
def told_fixture():
    """What the watchdog said, and an event that is set when it does."""
    class Told(list):
        event = threading.Event()

        def __call__(self, sentence):
            self.append(sentence)
            self.event.set()
    Told.event.clear()
    return Told()


def test_a_call_that_takes_too_long_is_reported_once(told):
    with watchdog.Watchdog(.1, on_timeout=told, first_call_factor=1) as dog, dog.watch():
        assert told.event.wait(30)
        time.sleep(.3)
    assert len(told) == 1 and told[0].startswith('No step ended in 0.1 s (--step_timeout_seconds=0.1).')


def test_a_step_that_hangs_on_one_machine_is_reported(told, monkeypatch):
    monkeypatch.setattr(waits, 'end_process', told)
    alone = watchdog.Alone(.01)
    with alone.minding(ask_to_stop=None), alone.watch():
        assert told.event.wait(30)
    assert told[0].startswith('No step ended in 0.1 s (--step_timeout_seconds=0.01). Training resumes from ')


def test_only_the_first_call_of_a_kind_may_take_long(told):
    with watchdog.Watchdog(.2, on_timeout=told, first_call_factor=100) as dog:
        with dog.watch():
            assert not told.event.wait(.6)
        with dog.watch(kind='batch of an evaluation'):
            assert not told.event.wait(.6)
        with dog.watch():
            assert told.event.wait(30)


def test_a_call_of_many_steps_may_take_long_while_they_end(told):
    positions, seconds = iter([0, 1, None, None, 2, 3, 3, 3]), .4
    with watchdog.Watchdog(seconds, on_timeout=told, first_call_factor=1) as dog:
        begin = time.monotonic()
        with dog.watch(progress=lambda: next(positions, 3)):
            assert told.event.wait(30)
    assert time.monotonic() - begin > seconds and told[0].startswith(f'No step ended in {seconds} s')


def test_what_lies_between_calls_and_calls_of_many_steps_take_their_time(told):
    with watchdog.Watchdog(.2, on_timeout=told, first_call_factor=1) as dog:
        with dog.watch():
            pass
        assert not told.event.wait(.6)
        position = itertools.count()
        with dog.watch(progress=lambda: next(position)):
            assert not told.event.wait(.6)


def test_beats_count_the_time_anew(told):
    with watchdog.Watchdog(2., on_timeout=told, first_call_factor=1) as dog, dog.watch():
        for _ in range(6):
            assert not told.event.wait(.5)
            dog.beat()


def test_no_limit_watches_nothing(told):
    with watchdog.Watchdog(0, on_timeout=told) as dog, dog.watch():
        assert not told.event.wait(.3)


def test_a_process_that_hangs_exits_with_the_code_for_a_restart():
    program = ('import time; from lingpipe.cluster import watchdog\n'
               'with watchdog.Watchdog(.1, first_call_factor=1) as dog, dog.watch(): time.sleep(100)')
    outcome = subprocess.run([sys.executable, '-c', program], capture_output=True, text=True, timeout=60)
    assert outcome.returncode == 75
    assert 'Error: No step ended in 0.1 s' in outcome.stderr


def test_connections_that_do_not_come_are_named(told, monkeypatch):
    monkeypatch.setattr(waits, 'end_process', told)
    monkeypatch.setattr(watchdog, 'find_silent_tasks', lambda config: ['worker:1'])
    jobs = {'chief': ['a:1'], 'worker': ['b:2', 'c:3'], 'ps': ['d:4']}
    with watchdog.connecting(cluster_config.ClusterConfig(jobs, 'chief', 0), .2):
        assert told.event.wait(30)
    assert told[0].startswith('Waited 0.2 s for connections to worker:0 (b:2), worker:1 (c:3), ps:0 (d:4). '
                              'No answer came from worker:1. Check that ')
