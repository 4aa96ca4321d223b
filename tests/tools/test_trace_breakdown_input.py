"""The share of the waiting for input, on steps whose times are given."""

import dataclasses

import pytest

from lingpipe import schedules
from lingpipe.schedules import simulation
from lingpipe.tools.trace import trace, trace_breakdown


def steps_that_waited(*waits, num_micro_batches=16):
    """Steps of 34 s on two devices, of which each was waited for so many seconds before."""
    schedule = schedules.make_schedule('gpipe', 2, num_micro_batches)
    step = simulation.replay(schedule, [dict.fromkeys(schedule.execution_order(), 1.0)])
    return [dataclasses.replace(step, input_wait=(-wait - 1.0, -1.0)) for wait in waits]


def test_the_share_is_the_mean_of_the_steps():
    first, second = steps_that_waited(34.0, 0.0)
    assert (first.seconds, first.input_seconds, first.asked) == (34.0, 34.0, -35.0)
    assert trace_breakdown.input_percent([first, second]) == pytest.approx(25)


def test_the_other_shares_make_room_for_it():
    assert trace_breakdown.input_shares(steps_that_waited(34.0), {'compute': 90.0, 'bubble': 10.0}) == pytest.approx(
        {'input': 50.0, 'compute': 45.0, 'bubble': 5.0})


def test_where_it_was_not_measured_nothing_changes():
    step, = steps_that_waited(0.0)
    step = dataclasses.replace(step, input_wait=())
    assert trace_breakdown.input_shares([step], {'compute': 100.0}) == {'compute': 100.0}
    assert (step.input_seconds, step.asked) == (0.0, step.start)


def test_only_a_large_wait_for_input_brings_advice():
    told = trace_breakdown.input_advice(steps_that_waited(34.0))
    assert told.startswith('Devices wait for input in 50 % of the step: ')
    for field in ('prefetch', 'cache', 'data_service', 'multi_worker'):
        assert field in told
    assert trace_breakdown.input_advice(steps_that_waited(0.5)) is None


def test_the_report_counts_the_wait_in_the_length_of_the_step():
    printed = trace.report(steps_that_waited(34.0), batch_size=64)
    assert printed.startswith('1 step of 68000.0 ms: ') and 'Devices wait for input in 50 %' in printed
