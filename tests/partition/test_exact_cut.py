import itertools

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies

from lingpipe.partition import exact_cut
from tests.partition.sums import memory_of


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
    ends = exact_cut.balanced_partition_ends(costs, num_partitions)
    best = min(maximum_and_squares(costs, cut) for cut in every_cut(len(costs), num_partitions))
    assert ends in every_cut(len(costs), num_partitions)
    assert maximum_and_squares(costs, ends) == best


def smallest_maximum_by_filling(costs, num_partitions):
    """Independent of the dynamic programme: bisects the maximum, and fills one partition after the other up to it."""
    low, high = max(costs), sum(costs)
    while low < high:
        middle, parts, part = (low + high) // 2, 1, 0
        for cost in costs:
            parts, part = (parts, part + cost) if part + cost <= middle else (parts + 1, cost)
        low, high = (low, middle) if parts <= num_partitions else (middle + 1, high)
    return low


@pytest.mark.parametrize('heavy_ends', [{}, {0: 10**7}, {0: 3 * 10**6, 1999: 2 * 10**7}])
def test_two_thousand_layers_over_64_partitions(heavy_ends):
    costs = np.random.default_rng(0).integers(0, 10**5, 2000)
    for layer, cost in heavy_ends.items():
        costs[layer] = cost
    ends = exact_cut.balanced_partition_ends(costs, 64)
    assert len(ends) == 64 and ends == sorted(set(ends))
    assert max(part_costs(costs.tolist(), ends)) == smallest_maximum_by_filling(costs.tolist(), 64)


@pytest.mark.parametrize('cost', [1, 0.1, 1e-9, 12345678912345.0])
def test_among_equally_good_cuts_later_partitions_get_more_layers(cost):
    assert exact_cut.balanced_partition_ends([cost] * 10, 4) == [2, 4, 7, 10]
    assert exact_cut.balanced_partition_ends([cost] * 11, 3) == [3, 7, 11]


@pytest.mark.parametrize('num_partitions', [0, 4])
def test_more_partitions_than_layers_are_refused(num_partitions):
    with pytest.raises(ValueError, match=f'num_partitions={num_partitions} .* 3 layers.*between 1 and 3'):
        exact_cut.balanced_partition_ends([1, 2, 3], num_partitions)


def assert_best(allowed, costs, *arguments, message):
    """The cut is the best of those that are allowed, or the error says what is missing."""
    if allowed:
        ends = exact_cut.balanced_partition_ends(costs, *arguments)
        assert ends in allowed
        assert maximum_and_squares(costs, ends) == min(maximum_and_squares(costs, cut) for cut in allowed)
    else:
        with pytest.raises(ValueError, match=message):
            exact_cut.balanced_partition_ends(costs, *arguments)


@pytest.mark.parametrize('keeps_more_early', [False, True])
@hypothesis.given(strategies.data(), strategies.lists(
    strategies.tuples(strategies.integers(0, 20), strategies.integers(0, 9)), min_size=1, max_size=8))
@hypothesis.settings(deadline=None, max_examples=200)
def test_no_cut_within_the_memory_limit_is_better_balanced(keeps_more_early, data, layers):
    costs, memory = [cost for cost, _ in layers], [size for _, size in layers]
    num_partitions = data.draw(strategies.integers(1, len(costs)))
    limit = data.draw(strategies.integers(1, 40))
    kept = range(num_partitions, 0, -1) if keeps_more_early else [1] * num_partitions
    allowed = [cut for cut in every_cut(len(costs), num_partitions)
               if all(count * size <= limit for count, size in zip(kept, part_costs(memory, cut)))]
    assert_best(allowed, costs, num_partitions, memory_of(memory, list(kept)), limit,
                message=f'memory_limit={limit} bytes .*(alone needs|at least [0-9]+ partitions)')


@hypothesis.given(strategies.data(), strategies.lists(strategies.integers(0, 20), min_size=3, max_size=8))
@hypothesis.settings(deadline=None, max_examples=200)
def test_no_cut_is_better_balanced_where_later_partitions_work_less(data, costs):
    num_partitions = data.draw(strategies.integers(1, 3))
    factors = sorted(data.draw(strategies.lists(
        strategies.integers(1, 4), min_size=num_partitions, max_size=num_partitions)), reverse=True)

    def value(cut):
        parts = [factor * part for factor, part in zip(factors, part_costs(costs, cut))]
        return max(parts), sum(part * part for part in parts)

    ends = exact_cut.balanced_partition_ends(np.outer(factors, costs), num_partitions)
    assert value(ends) == min(map(value, every_cut(len(costs), num_partitions)))


def test_a_layer_that_fits_nowhere_is_named():
    with pytest.raises(ValueError, match=(
            r'memory_limit=1,000 bytes is too little for num_partitions=2: layers\[2\] alone needs 1,200 bytes in '
            r'partition 1\. Raise memory_limit to 1,200 bytes at least, or split this layer')):
        exact_cut.balanced_partition_ends([1, 1, 1], 2, memory=memory_of([400, 500, 1200]), memory_limit=1000)


def test_too_few_partitions_name_the_number_that_memory_needs():
    with pytest.raises(ValueError, match=(
            r'memory_limit=10 bytes is too little for num_partitions=2: at most 2 of 4 layers fit, and '
            r'all layers need at least 4 partitions\. Set num_partitions=4 or more, or raise memory_limit')):
        exact_cut.balanced_partition_ends([1] * 4, 2, memory=memory_of([6, 6, 6, 6]), memory_limit=10)


def device_sums(memory, ends, num_devices):
    parts = part_costs(memory, ends)
    return [sum(parts[device::num_devices]) for device in range(num_devices)]


def test_stages_that_share_a_device_keep_to_its_limit_together():
    """Balanced, the 4 stages are [0] [1] [2] [3, 4]: device 0 has layers 0 and 2, device 1 the heavy 1 and 4."""
    costs, memory = [10, 10, 10, 5, 5], [1, 5, 1, 1, 5]
    balanced = exact_cut.balanced_partition_ends(costs, 4)
    assert balanced == [1, 2, 3, 5] and device_sums(memory, balanced, 2) == [2, 11]
    ends = exact_cut.balanced_partition_ends(costs, 4, memory_of(memory), memory_limit=11, devices=[0, 1, 0, 1])
    assert ends == balanced
    with pytest.raises(ValueError, match=(
            r'memory_limit=5 bytes .*num_partitions=4: its stages balanced, device 1 needs 10 bytes for its stages '
            r'\[1, 3\]\. Use fewer stages on each device')):
        exact_cut.balanced_partition_ends(costs, 4, memory_of(memory), memory_limit=5, devices=[0, 1, 0, 1])


def test_a_stage_alone_on_its_device_may_use_all_of_its_memory():
    """Balanced, the stages are [0, 1] [2, 3] [4, 5], of which device 0 holds the first and the last: 24 bytes.

    With half of 22 for each of these, [0] [1, 2, 3, 4] [5], device 0 needs 18, and device 1 14 for one stage.
    """
    costs, memory = [1] * 6, [9, 3, 4, 4, 3, 9]
    assert exact_cut.balanced_partition_ends(costs, 3, memory_of(memory), 24, [0, 1, 0]) == [2, 4, 6]
    assert exact_cut.balanced_partition_ends(costs, 3, memory_of(memory), 22, [0, 1, 0]) == [1, 5, 6]
    with pytest.raises(ValueError, match=r'device 0 needs 18 bytes for its stages \[0, 2\]'):
        exact_cut.balanced_partition_ends(costs, 3, memory_of(memory), 17, [0, 1, 0])


def test_stages_of_a_device_get_less_memory_each_until_they_fit_together():
    """The best balance, [0, 1] [2] [3] [4, 5], needs 18 bytes of device 0; [0] [1, 2] [3] [4, 5] needs 12 and 9."""
    costs, memory = [5, 5, 10, 10, 5, 5], [6, 6, 1, 6, 1, 1]
    balanced = exact_cut.balanced_partition_ends(costs, 4)
    assert balanced == [2, 3, 4, 6] and device_sums(memory, balanced, 2) == [18, 3]
    ends = exact_cut.balanced_partition_ends(costs, 4, memory_of(memory), memory_limit=16, devices=[0, 1, 0, 1])
    assert ends == [1, 3, 4, 6] and device_sums(memory, ends, 2) == [12, 9]


@pytest.mark.parametrize('ends', [[2, 7], [3, 2, 7], [2, 2, 7], [0, 3, 7], [2, 3, 6], [2, 3, 8], [2, 3.5, 7], []])
def test_wrong_ends_are_refused(ends):
    with pytest.raises(ValueError, match=r'partition_by=\[.* 7 layers .*num_partitions=3.* last of which is 7'):
        exact_cut.validate_partition_ends(ends, num_layers=7, num_partitions=3)
