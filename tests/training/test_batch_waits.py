"""Inputs whose batches are taken are left alone."""

import functools

from lingpipe.training import batch_waits


def test_only_batches_are_waited_for_and_not_who_takes_them(told, caplog):
    taken = [(batch, told.event.wait(.8)) for batch in batch_waits.each_batch(lambda: 'ab', functools.partial(batch_waits.for_batch, 'letters', .4))]
    assert taken == [('a', False), ('b', False)] and not caplog.records
