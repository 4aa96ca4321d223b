"""Times of summations, against values computed by hand."""

import pytest

from benchmarks.scaling import reduction_time


def test_an_oblong_waits_for_its_longer_side():
    # Halves of 400 bytes on 2 x 4: 3 steps of 100, 3 of 50 along the longer side, and both again.
    assert reduction_time.two_dimensional(800, 2, 4, 100, 0.5) == (12, 900, 2 * (3 * 1.5 + 3 * 1.0))


@pytest.mark.parametrize(
    'reduction', [reduction_time.ring(800, 1, 100), reduction_time.two_dimensional(800, 1, 1, 100)])
def test_one_chip_has_nothing_to_send(reduction):
    assert reduction == (0, 0, 0)
