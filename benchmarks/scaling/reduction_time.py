"""How long accelerators take to sum gradients over one ring or over two dimensions, until each has all sums.

A transfer of b bytes between neighbours takes latency + b / bandwidth. A ring of n chips cuts the tensor into n parts.
After n - 1 steps every chip has one part's sum, after n - 1 more it has all sums. Every step sends a part over every
link.
"""

from typing import NamedTuple

# What starting a transfer between neighbours costs a TPU: 'How to Scale Your Model', chapter 'Inference', appendix on
# latency.
HOP_SECONDS = 1e-6


class Reduction(NamedTuple):
    """One summation.

    Attributes:
        steps: number of transfers that wait for each other.
        bytes_per_link: bytes over the busiest link, one way.
        seconds: from first to last byte.
    """

    steps: int
    bytes_per_link: float
    seconds: float


def ring(num_bytes, num_chips, link_bandwidth, hop_seconds=HOP_SECONDS):
    """Sum over one ring through all chips.

    With n chips, B bytes, bandwidth w and latency a: 2 (n - 1) (a + B / (n w)). Half of it is a reduce-scatter, half a
    ring allgather: Thakur, Rabenseifner and Gropp, Optimization of Collective Communication Operations in MPICH, 2005,
    section 4.

    Args:
        num_bytes: B, bytes that each chip has to add.
        num_chips: n.
        link_bandwidth: w, bytes a second to a neighbour, one way.
        hop_seconds: a, seconds that a transfer takes besides.

    Returns:
        `Reduction`.
    """
    return _both_ways([(num_chips - 1, num_bytes / num_chips)],
                      num_bytes_per_link=2 * num_bytes * (num_chips - 1) / num_chips,
                      link_bandwidth=link_bandwidth, hop_seconds=hop_seconds)


def two_dimensional(num_bytes, num_rows, num_columns, link_bandwidth, hop_seconds=HOP_SECONDS):
    """Sum over the rings of a torus: half of the bytes along rows and then columns, the other half along columns and
    then rows.

    So the links of both dimensions are busy all the time::

                        first           then
        one half        rows     ->     columns, with the part that the row's ring left
        other half      columns  ->     rows

    Both halves begin a dimension together. On s x s = n chips this is 4 (s - 1) a + (n - 1) / n B / w, with the names
    of `ring`: half its bytes on a link, and steps that grow with s, not with n. Ying et al. 2018, arXiv 1811.06992,
    two-dimensional gradient summation.

    Args:
        num_bytes: bytes that each chip has to add.
        num_rows: chips in a column of the torus.
        num_columns: chips in a row of the torus.
        link_bandwidth: bytes a second to a neighbour, one way.
        hop_seconds: seconds that a transfer takes besides.

    Returns:
        `Reduction`.
    """
    half, sides = num_bytes / 2, (num_rows, num_columns)
    first = max(((side - 1, half / side) for side in sides), key=lambda part: part[0])
    then = (max(sides) - 1, half / (num_rows * num_columns))
    over_a_link = max(2 * half * (side - 1) * (1 / side + 1 / (num_rows * num_columns)) for side in sides)
    return _both_ways([first, then], over_a_link, link_bandwidth, hop_seconds)


def _both_ways(phases, num_bytes_per_link, link_bandwidth, hop_seconds):
    """Add up what makes the sums and what brings them to all, which takes the same steps backwards.

    Args:
        phases: list of pairs (steps, bytes of a step).
    """
    seconds = sum(steps * (hop_seconds + num_bytes / link_bandwidth) for steps, num_bytes in phases)
    return Reduction(2 * sum(steps for steps, _ in phases), num_bytes_per_link, 2 * seconds)
