"""Which examples share a row, so that few positions are wasted."""

import bisect
from collections.abc import Sequence


def best_fit(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Packs examples, the longest first, each into the row in which it leaves the least space.

    Best-fit decreasing needs at most 11/9 of the fewest rows possible, plus 4 (Johnson et al. 1974, "Worst-case
    performance bounds for simple one-dimensional packing algorithms").

    Args:
        lengths: number of tokens of each example, at most `capacity`.
        capacity: number of tokens in a row.

    Returns:
        The numbers of the examples of each row, ascending; rows in the order of their first example.
    """
    rows: list[list[int]] = []
    spaces: list[tuple[int, int]] = []  # (space, number of the row), ascending
    for number in sorted(range(len(lengths)), key=lambda number: -lengths[number]):
        place = bisect.bisect_left(spaces, (lengths[number], 0))
        space, row = spaces.pop(place) if place < len(spaces) else (capacity, len(rows))
        if row == len(rows):
            rows.append([])
        rows[row].append(number)
        bisect.insort(spaces, (space - lengths[number], row))
    return sorted(sorted(row) for row in rows)
