"""Calls that return are left alone; one that does not is told of, with the tasks that do not answer."""

import itertools
import time

from lingpipe.training import watchdog


def test_a_step_that_hangs_is_reported_once(told):
    with watchdog.Watchdog(.01).watch():
        assert told.event.wait(30)
        time.sleep(.3)
    assert told == ['Waited 0.1 s for the first step to end (--step_timeout_seconds=0.01). See that its machine or file '
                    'system answers, then run the same command again: training resumes from the newest checkpoint.']


def test_only_the_first_call_of_a_kind_may_take_long(told):
    dog = watchdog.Watchdog(.2)
    with dog.watch():
        assert not told.event.wait(.6)
    with dog.watch(kind='batch of an evaluation'):
        assert not told.event.wait(.6)
    with dog.watch():
        assert told.event.wait(30)
    assert 'Waited 0.2 s for a step to end (--step_timeout_seconds=0.2).' in told[0]


def test_what_lies_between_calls_and_calls_of_many_steps_take_their_time(told, monkeypatch):
    monkeypatch.setattr(watchdog, '_FIRST_CALL_FACTOR', 1)
    dog, position = watchdog.Watchdog(.2), itertools.count()
    with dog.watch():
        pass
    assert not told.event.wait(.6)
    with dog.watch(progress=lambda: next(position)):
        assert not told.event.wait(.6)
    with dog.watch(progress=lambda: 3):
        assert told.event.wait(30)
