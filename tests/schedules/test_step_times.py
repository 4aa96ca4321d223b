"""What follows from when devices worked, by hand."""

import pytest

from lingpipe import schedules
from lingpipe.schedules.timeline import StepTimes

# Device 0 works 1 + 2 seconds of 8, device 1 works 1 + 3; the update that follows is no part of the pipeline's phase.
_STEP = StepTimes(
    schedules.make_schedule('gpipe', 2, 1),
    (schedules.Span(0, schedules.Action('F', 0, 0), 10.0, 11.0), schedules.Span(
        1, schedules.Action('F', 1, 0), 11.5, 12.5),
     schedules.Span(1, schedules.Action('B', 1, 0), 12.5, 15.5),
     schedules.Span(0, schedules.Action('B', 0, 0), 16.0, 18.0)),
    ((18.0, 19.0), (18.0, 20.0)))


def test_bubble_fraction_is_what_devices_wait_of_the_time_of_the_actions():
    assert _STEP.bubble_fraction == pytest.approx(1 - (3 + 4) / (2 * 8))


def test_bubble_fraction_and_actions_in_flight_add_up():
    assert _STEP.mean_actions_in_flight == pytest.approx(2 * (1 - _STEP.bubble_fraction))
