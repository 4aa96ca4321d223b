"""Optimal cut of a sequence of layers into contiguous partitions of even costs.

The cut has the smallest possible maximum cost. Of all such cuts, it has the smallest sum of squared costs. GPipe's
paper, section 2.1, asks for a small variance and gives no algorithm.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from lingpipe.partition import memory_model


def balanced_partition_ends(costs: Any, num_partitions: int, memory: Any = None, memory_limit: float | None = None,
                            devices: Sequence[int] | None = None) -> list[int]:
    """Find the cut that minimises the cost of the most expensive partition.

    If `memory_limit` applies to a device with several partitions, the search may miss the best or the only cut.

    Args:
        costs: non-negative numbers, `[L]` for L layers, or `[num_partitions, L]`. A layer must not cost more in a later
            partition.
        num_partitions: number of partitions on all devices, between 1 and L.
        memory: function `(partitions, starts, ends) -> bytes` with integer arrays as arguments, such as
            `memory_model.MemoryModel`. The bytes must not fall with more layers, nor rise in a later partition. None is
            possible only without `memory_limit`.
        memory_limit: bytes of one device. None: no limit.
        devices: index of the device of each partition. None: each partition has its own device.

    Returns:
        List of ascending end indices. Partition k holds layers `ends[k - 1]` to `ends[k] - 1`.

    Raises:
        ValueError: there are fewer layers than partitions, or no cut within the limit was found.
    """
    costs = np.asarray(costs, np.float64)
    num_layers = costs.shape[-1]
    if not 1 <= num_partitions <= num_layers:
        raise ValueError(
            f'num_partitions={num_partitions} is not possible with {num_layers} layers: each partition needs a layer. '
            f'Choose num_partitions between 1 and {num_layers}.')
    costs = np.broadcast_to(costs, [num_partitions, num_layers])
    if memory_limit is None:
        return _balanced(costs, np.zeros(costs.shape, int))
    budget = memory_model.MemoryBudget(memory, memory_limit, num_layers, devices or range(num_partitions))
    closest = None
    # The search ignores sums over a device's stages. If one exceeds the limit, lower limits for single stages follow.
    for stage_limit in budget.stage_limits():
        ends = _balanced(costs, budget.first_starts(stage_limit))
        if ends is None:
            break
        if budget.fits(ends):
            return ends
        closest = ends
    raise ValueError(budget.explain(closest))


def _balanced(costs, first_starts):
    """Return the best cut, or None if no cut fits."""
    # A partition k that ends at e starts at first_starts[k, e - 1] or later.
    prefixes = memory_model.prefix_sums(costs)
    ends = _cut(prefixes, first_starts, np.maximum, lambda part: part)
    if ends is None:
        return None
    limit = (1 + 1e-12) * max(prefix[end] - prefix[start] for prefix, start, end in zip(prefixes, [0, *ends], ends))
    light_starts = [np.searchsorted(prefix, prefix[1:] - limit) for prefix in prefixes]
    exact_sums = memory_model.prefix_sums(_as_integers(costs))
    return _cut(exact_sums, np.maximum(first_starts, light_starts), np.add, np.square)


def _as_integers(costs):
    """Scale costs and round them to integers, because squares of integers are exact."""
    return np.rint(costs * (2**31 / (costs.sum(axis=1).max() or 1.0))).astype(np.int64)


def _cut(prefixes, first_starts, combine, part_cost):
    """Find the best end indices by dynamic programming, or return None if no cut fits."""
    num_layers = first_starts.shape[1]
    possible, best, starts = np.array([0]), np.zeros(1, prefixes.dtype), []  # best: least cost up to each end
    for prefix, earliest in zip(prefixes, first_starts):
        ends = np.arange(1, num_layers + 1)
        first, last = np.searchsorted(possible, earliest), np.searchsorted(possible, ends) - 1
        ends, first, last = (values[first <= last] for values in (ends, first, last))

        def totals(rows, columns, prefix=prefix, ends=ends, possible=possible, best=best):
            return combine(best[columns], part_cost(prefix[ends[rows]] - prefix[possible[columns]]))

        choice = _least_columns(first, last, totals)
        starts.append(dict(zip(ends.tolist(), possible[choice].tolist())))
        best, possible = totals(np.arange(len(ends)), choice), ends
    return _read_back(starts, num_layers)


def _least_columns(first, last, totals):
    """Return for each row the leftmost column from `first[row]` to `last[row]` with the least total."""
    # The totals are a totally monotone matrix: the best column of a row lies between the best columns of the rows
    # around it. So the middle row is solved first, and a round reads each column about once:
    #     row    0  1  2  3  4  5  6
    #     round  3  2  3  1  3  2  3
    choice = np.zeros(len(first), int)
    step = 1 << len(first).bit_length()
    while step := step // 2:
        rows = np.arange(step - 1, len(first), 2 * step)
        low, high = first[rows], last[rows]
        low[1:] = np.maximum(low[1:], choice[rows[1:] - step])
        bounded = rows + step < len(first)
        high[bounded] = np.minimum(high[bounded], choice[rows[bounded] + step])
        choice[rows] = _least_of_runs(rows, low, high, totals)
    return choice


def _least_of_runs(rows, low, high, totals):
    counts = high - low + 1
    offsets = np.cumsum(counts) - counts
    columns = np.arange(counts.sum()) + np.repeat(low - offsets, counts)
    values = totals(np.repeat(rows, counts), columns)
    least = np.repeat(np.minimum.reduceat(values, offsets), counts)
    return np.minimum.reduceat(np.where(values == least, columns, np.iinfo(columns.dtype).max), offsets)


def _read_back(starts, num_layers):
    ends = [num_layers]
    for start_of in reversed(starts):
        if ends[-1] not in start_of:
            return None
        ends.append(start_of[ends[-1]])
    return ends[-2::-1]


def validate_partition_ends(ends: Iterable[int], num_layers: int, num_partitions: int) -> list[int]:
    """Return end indices as a list. Raise ValueError if the indices do not make `num_partitions` partitions."""
    ends = list(ends)
    ascending = all(isinstance(end, int) for end in ends) and all(a < b for a, b in zip([0] + ends, ends))
    if len(ends) != num_partitions or not ascending or ends[-1] != num_layers:
        raise ValueError(
            f'partition_by={ends} does not cut {num_layers} layers into num_partitions={num_partitions} partitions: '
            f'it must hold {num_partitions} ascending end indices, the last of which is {num_layers}.')
    return ends
