import numpy as np
import pytest

from lingpipe.input import sequence_packing


@pytest.mark.parametrize(('lengths', 'rows'), [
    ([3, 5, 2, 4, 1], [[0, 1], [2, 3, 4]]), ([8, 8], [[0], [1]]), ([5, 4, 3], [[0, 2], [1]]), ([], [])])
def test_each_example_goes_where_least_space_is_left(lengths, rows):
    assert sequence_packing.best_fit(lengths, 8) == rows


def test_every_example_is_packed_once_and_few_positions_are_wasted():
    lengths = np.random.default_rng(0).integers(1, 60, 2000).tolist()
    rows = sequence_packing.best_fit(lengths, 100)
    assert sorted(number for row in rows for number in row) == list(range(2000))
    sizes = [sum(lengths[number] for number in row) for row in rows]
    assert max(sizes) <= 100 and np.mean(sizes) > 98
