"""Cutting a sequence of layers into contiguous partitions whose costs are as equal as can be.

The cut is exact: no contiguous cut has a smaller maximum, and among those that share the maximum none has a smaller sum of
squares. (GPipe's paper, section 2.1, asks for a small variance and gives no algorithm; Lingvo's one-pass histogram may
leave the first partition empty.)
"""

import numpy as np


def balanced_partition_ends(costs, num_partitions):
    """Finds the cut that minimises the cost of the most expensive partition.

    Args:
        costs: sequence of L non-negative numbers, one a layer.
        num_partitions: K, the number of partitions, between 1 and L.

    Returns:
        List of K ascending end indices, the last of which is L; partition k holds layers `ends[k - 1]` to `ends[k] - 1`.

    Raises:
        ValueError: when there are fewer layers than partitions.
    """
    if not 1 <= num_partitions <= len(costs):
        raise ValueError(
            f'num_partitions={num_partitions} is not possible with {len(costs)} layers: each partition needs a layer. '
            f'Choose num_partitions between 1 and {len(costs)}.')
    prefix = np.concatenate([[0.0], np.cumsum(np.asarray(costs, np.float64))])
    bottleneck = _cut(prefix, num_partitions, np.maximum)[0]
    limit = bottleneck * (1 + 1e-12)
    return _cut(prefix, num_partitions, np.add, lambda part: np.where(part <= limit, part**2, np.inf))[1]


def _cut(prefix, num_partitions, combine, part_cost=lambda part: part):
    """Dynamic programme over (number of partitions, end): `best[e]` joins the costs of the parts of layers 0 to e - 1."""
    num_layers = len(prefix) - 1
    best = np.full(num_layers + 1, np.inf)
    best[0] = 0.0
    choices = []
    for _ in range(num_partitions):
        longer, choice = np.full(num_layers + 1, np.inf), np.zeros(num_layers + 1, int)
        for end in range(1, num_layers + 1):
            totals = combine(best[:end], part_cost(prefix[end] - prefix[:end]))
            choice[end] = np.argmin(totals)
            longer[end] = totals[choice[end]]
        best = longer
        choices.append(choice)
    ends = [num_layers]
    for choice in reversed(choices[1:]):
        ends.append(int(choice[ends[-1]]))
    return best[num_layers], ends[::-1]


def validate_partition_ends(ends, num_layers, num_partitions):
    """Checks end indices that a user has written down, as Lingvo's `splits` are.

    Args:
        ends: list of end indices.
        num_layers: L, the number of layers.
        num_partitions: K, the number of partitions.

    Returns:
        `ends` as a list of integers.

    Raises:
        ValueError: when the indices do not cut L layers into K non-empty partitions.
    """
    ends = list(ends)
    ascending = all(isinstance(end, int) for end in ends) and all(a < b for a, b in zip([0] + ends, ends))
    if len(ends) != num_partitions or not ascending or ends[-1] != num_layers:
        raise ValueError(
            f'partition_by={ends} does not cut {num_layers} layers into num_partitions={num_partitions} partitions: '
            f'it must hold {num_partitions} ascending end indices, the last of which is {num_layers}.')
    return ends
