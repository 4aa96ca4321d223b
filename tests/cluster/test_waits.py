"""Waits that go on are left alone; one that does not is warned of by name, and ends the process at last."""

import os
import subprocess
import sys
import time
import types

import pytest

from lingpipe.cluster import waits


def test_a_wait_is_warned_of_by_name_and_then_ended(told, caplog):
    with waits.Wait('a pigeon', .4, 'train.pigeon_seconds=0.4', details=lambda: 'It rains.'):
        assert told.event.wait(30)
    assert [record.getMessage().split(' after ')[0] for record in caplog.records][:1] == ['Still waiting for a pigeon']
    assert caplog.records[0].getMessage().endswith(' s. It rains. If this takes 0.4 s, the process ends (train.pigeon_seconds=0.4).')
    assert len(told) == 1
    assert told[0].startswith('Waited 0.4 s for a pigeon (train.pigeon_seconds=0.4). It rains. See that its ')


def test_progress_counts_the_time_from_its_start(told):
    positions = iter(range(1000))
    with waits.Wait('a pigeon', .2, position=lambda: next(positions)):
        assert not told.event.wait(1)


@pytest.fixture
def clock(monkeypatch):
    """A clock whose attribute `pause` is how long the process was stopped so far."""
    made = types.SimpleNamespace(pause=0, time=time.time, process_time=time.process_time)
    made.monotonic = lambda: time.monotonic() + made.pause
    monkeypatch.setattr(waits, 'time', made)
    return made


def test_a_pause_does_not_count(told, clock):
    with waits.Wait('a pigeon', 100):
        time.sleep(.2)
        clock.pause = 3600
        assert not told.event.wait(2.5)


def test_an_urgent_wait_ends_soon(told, monkeypatch):
    monkeypatch.setattr(waits, '_URGENT_SECONDS', .2)
    with waits.Wait('a pigeon', 600, 'train.pigeon_seconds', is_urgent=lambda: True):
        assert told.event.wait(30)
    assert told[0].startswith('Waited 0.2 s for a pigeon. See')


def test_a_process_that_waits_exits_with_the_code_for_a_restart():
    program = ('import time; from lingpipe.cluster import waits\n'
               'with waits.Wait("a pigeon", .1, "seconds=0.1"): time.sleep(100)')
    outcome = subprocess.run([sys.executable, '-c', program], capture_output=True, text=True, timeout=60)
    assert outcome.returncode == os.EX_TEMPFAIL
    assert 'Error: Waited 0.1 s for a pigeon (seconds=0.1). See that' in outcome.stderr
