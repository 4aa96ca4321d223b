"""Times of summations, against values computed by hand."""

import pytest

from benchmarks.scaling import reduction_time


def test_a_ring_of_four_sends_six_quarters():
    # 2 * 3 steps of 800 / 4 = 200 bytes, each 2 s of transfer at 100 bytes a second, and half a second of latency.
    assert reduction_time.ring(800, 4, 100, 0.5) == (6, 1200, 15.0)


def test_a_square_of_four_takes_four_steps_and_half_the_bytes():
    # Halves of 400 bytes: 1 step of 200, 1 of 100, and both again: 600 bytes at 100 a second, and 4 * 0.5 s.
    assert reduction_time.two_dimensional(800, 2, 2, 100, 0.5) == (4, 600, 8.0)


def test_an_oblong_waits_for_its_longer_side():
    # Halves of 400 bytes on 2 x 4: 3 steps of 100, 3 of 50 along the longer side, and both again.
    assert reduction_time.two_dimensional(800, 2, 4, 100, 0.5) == (12, 900, 2 * (3 * 1.5 + 3 * 1.0))


@pytest.mark.parametrize('side', [2, 4, 8, 16, 32])
def test_a_square_takes_steps_by_its_side_and_half_the_ring_bytes(side):
    num_bytes, num_chips, bandwidth, latency = 102e6, side**2, 1e11, 1e-6
    flat = reduction_time.ring(num_bytes, num_chips, bandwidth, latency)
    square = reduction_time.two_dimensional(num_bytes, side, side, bandwidth, latency)
    assert (flat.steps, square.steps) == (2 * (num_chips - 1), 4 * (side - 1))
    assert square.bytes_per_link == pytest.approx(flat.bytes_per_link / 2)
    for each in (flat, square):
        assert each.seconds == pytest.approx(each.steps * latency + each.bytes_per_link / bandwidth)


@pytest.mark.parametrize(
    'reduction', [reduction_time.ring(800, 1, 100), reduction_time.two_dimensional(800, 1, 1, 100)])
def test_one_chip_has_nothing_to_send(reduction):
    assert reduction == (0, 0, 0)
