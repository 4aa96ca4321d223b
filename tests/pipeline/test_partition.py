import itertools

import hypothesis
import pytest
from hypothesis import strategies

from lingpipe.pipeline import partition

# Milliseconds of a forward and backward pass through each of ten layers, as measured once on a CPU.
MEASURED_MILLISECONDS = [264, 95, 92, 88, 87, 86, 90, 85, 85, 7]

# Billions of multiply-adds of each unit of AmoebaNet-D (18, 256) at 224 x 224.
AMOEBANET_GMACS = [
    0.0106, 0.0789, 0.1437,
    0.411, 0.578, *[0.7065] * 4,
    1.0372, 0.5523, 0.6551, *[0.7065] * 4,
    1.0372, 0.5523, 0.6551, *[0.7065] * 4,
    0.0041]


def part_costs(costs, ends):
    return [sum(costs[start:end]) for start, end in zip([0, *ends], ends)]


def every_cut(num_layers, num_partitions):
    for inner in itertools.combinations(range(1, num_layers), num_partitions - 1):
        yield [*inner, num_layers]


def maximum_and_squares(costs, ends):
    parts = part_costs(costs, ends)
    return max(parts), sum(part * part for part in parts)


@hypothesis.given(strategies.data(), strategies.lists(strategies.integers(0, 50), min_size=1, max_size=9))
@hypothesis.settings(deadline=None, max_examples=200)
def test_no_cut_is_better_balanced(data, costs):
    num_partitions = data.draw(strategies.integers(1, len(costs)))
    ends = partition.balanced_partition_ends(costs, num_partitions)
    best = min(maximum_and_squares(costs, cut) for cut in every_cut(len(costs), num_partitions))
    assert ends in every_cut(len(costs), num_partitions)
    assert maximum_and_squares(costs, ends) == best


@hypothesis.given(
    strategies.lists(strategies.floats(1e-3, 1e12), min_size=3, max_size=9), strategies.integers(1, 3))
@hypothesis.settings(deadline=None, max_examples=100)
def test_no_cut_of_real_costs_has_a_smaller_maximum(costs, num_partitions):
    ends = partition.balanced_partition_ends(costs, num_partitions)
    best = min(max(part_costs(costs, cut)) for cut in every_cut(len(costs), num_partitions))
    assert max(part_costs(costs, ends)) == pytest.approx(best, rel=1e-9)


@pytest.mark.parametrize('num_partitions, maximum', [(1, 979), (2, 528), (3, 359), (4, 267)])
def test_optimum_of_a_measured_profile(num_partitions, maximum):
    ends = partition.balanced_partition_ends(MEASURED_MILLISECONDS, num_partitions)
    assert max(part_costs(MEASURED_MILLISECONDS, ends)) == maximum


@pytest.mark.parametrize('num_partitions, imbalance', [(2, 1.014), (4, 1.045), (8, 1.195)])
def test_imbalance_of_amoebanet(num_partitions, imbalance):
    ends = partition.balanced_partition_ends(AMOEBANET_GMACS, num_partitions)
    parts = part_costs(AMOEBANET_GMACS, ends)
    assert round(max(parts) * num_partitions / sum(parts), 3) == imbalance


@pytest.mark.parametrize('num_layers, num_partitions, sizes', [(16, 4, [4, 4, 4, 4]), (8, 8, [1] * 8)])
def test_equal_layers_give_equal_partitions_and_none_is_empty(num_layers, num_partitions, sizes):
    ends = partition.balanced_partition_ends([1] * num_layers, num_partitions)
    assert [end - start for start, end in zip([0, *ends], ends)] == sizes


def test_layers_without_cost_still_fill_every_partition():
    assert partition.balanced_partition_ends([0, 0, 0], 3) == [1, 2, 3]


@pytest.mark.parametrize('num_partitions', [0, 4])
def test_more_partitions_than_layers_are_refused(num_partitions):
    with pytest.raises(ValueError, match=f'num_partitions={num_partitions} .* 3 layers.*between 1 and 3'):
        partition.balanced_partition_ends([1, 2, 3], num_partitions)


def test_written_ends_are_kept():
    assert partition.validate_partition_ends((2, 3, 7), num_layers=7, num_partitions=3) == [2, 3, 7]


@pytest.mark.parametrize('ends', [[2, 7], [3, 2, 7], [2, 2, 7], [0, 3, 7], [2, 3, 6], [2, 3, 8], [2, 3.5, 7], []])
def test_wrong_ends_are_refused(ends):
    with pytest.raises(ValueError, match=r'partition_by=\[.* 7 layers .*num_partitions=3.* last of which is 7'):
        partition.validate_partition_ends(ends, num_layers=7, num_partitions=3)
