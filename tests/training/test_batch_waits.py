"""Inputs that work, or whose batches are taken, are left alone; one that does nothing ends the process."""

import functools
import time

from lingpipe.training import batch_waits


def test_an_input_that_does_nothing_is_ended(told, monkeypatch):
    monkeypatch.setattr(batch_waits, '_LONGEST_IDLE_SECONDS', .2)
    with batch_waits.for_input('a nest of pigeons'):
        assert told.event.wait(30)
    assert told[0].startswith('Waited 0.2 s for a nest of pigeons to be ready.')
    assert 'Only time without work counts. See that its machine or file system answers' in told[0]


def test_a_process_works_that_computes_or_writes(monkeypatch, tmp_path):
    monkeypatch.setattr(batch_waits, '_SECONDS_OF_WORK', .01)
    (computed, _), end = batch_waits._work_of_process(), time.process_time() + .02
    while time.process_time() < end:
        pass
    now_computed, written = batch_waits._work_of_process()
    assert now_computed > computed
    (tmp_path / 'file').write_bytes(bytes(2 * batch_waits._BYTES_OF_WORK))
    assert batch_waits._work_of_process()[1] > written


def test_only_batches_are_waited_for_and_not_who_takes_them(told, caplog):
    taken = [(batch, told.event.wait(.8)) for batch in batch_waits.each_batch(lambda: 'ab', functools.partial(batch_waits.for_batch, 'letters', .4))]
    assert taken == [('a', False), ('b', False)] and not caplog.records
