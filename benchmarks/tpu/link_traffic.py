"""What collectives of a compiled TPU program send over the links of a torus, by a model of rings.

A group along one axis is a ring through its chips. With n cores in it and B bytes, a reduce-scatter or an all-gather
sends B (n - 1) / n over each link of the axis in n - 1 steps, an all-reduce twice that in twice as many: Thakur,
Rabenseifner and Gropp, Optimization of Collective Communication Operations in MPICH, 2005, section 4. Groups that share
a link add up. An all-reduce over both axes is counted by the algorithm that the compiler notes with it::

    StrategyND{colors:2 phases:2 cores:{64 32},{64 32} ... dim_used:{0 1},{1 0} ...}

Here two parts of the tensor (colors) go at the same time, each in two phases: one part along rings of 64 cores of
dimension 0, which is y, and then of 32 of dimension 1, which is x, the other part along x first. A later phase has what
a reduce-scatter in the earlier ones leaves. The compiler explains these names nowhere. On a slice of 4 x 8 chips of two
cores it notes {16 4},{8 8} and dim_sizes:8,4, which only this reading explains.

Bytes are those of both directions together, and of tensors as they are, without the padding of tiles. A slice without
the links that close its lines to rings sends up to twice as many, whatever the order of the axes.
"""

import math
import re
from typing import NamedTuple

AXES = 'xy'
_AXES_OF_COMPILER = (1, 0)  # to which dimension 0 is y
_LAPS = {'reduce-scatter': 1, 'all-gather': 1, 'all-reduce': 2}
_KINDS = 'all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter'
_INSTRUCTION = re.compile(rf'%(\S+) = (\(.*?\)|\S+) ((?:{_KINDS})(?:-start)?)\(')
_GROUPS = re.compile(r'replica_groups=\{(\{[\d,{}]*\})\}')
_TENSOR = re.compile(r'[a-z]+(\d+)\[([\d,]*)\]')
_RINGS = re.compile(r'colors:\d+ phases:\d+ cores:(\{[{}\d ,]+\}) .*dim_used:(\{[{}\d ,]+\})')


class Ring(NamedTuple):
    """Rings along one axis, side by side, such that every core is in one.

    Attributes:
        axis: 0: x, 1: y.
        size: number of cores in each.
        num_bytes: bytes that each adds up or gathers.
        laps: 1, or for an all-reduce 2.
    """

    axis: int
    size: int
    num_bytes: float
    laps: int

    @property
    def steps(self):
        """Number of transfers that wait for each other."""
        return self.laps * (self.size - 1)

    def link_bytes(self, coordinates):
        """Returns the bytes over each link of the axis; the cores on its lines form one ring or several."""
        num_lines = len({place[1 - self.axis] for place in coordinates})
        return self.steps / self.size * self.num_bytes * len(coordinates) / num_lines / self.size


class Collective(NamedTuple):
    """A sum or an all-gather.

    Attributes:
        kind: 'reduce-scatter', 'all-reduce' or 'all-gather'.
        groups: list of lists of replicas.
        num_bytes: bytes of the whole tensor, or of all of them.
        parts: list of lists of `Ring`: parts of the tensor go at the same time, the rings of a part in turn.
    """

    kind: str
    groups: list
    num_bytes: int
    parts: list


class Traffic(NamedTuple):
    """What collectives that run one after another send.

    Attributes:
        link_bytes: pair of the bytes over each link along x and along y.
        bytes_in_turn: bytes that wait for each other: those over the busier axis in each phase, added up.
        steps: number of transfers that wait for each other.
    """

    link_bytes: tuple
    bytes_in_turn: float
    steps: int


def collectives(hlo, coordinates):
    """Reads the collectives of a program, in their order.

    Args:
        hlo: text of the compiled program.
        coordinates: list of `(x, y, z, core of the chip)`, one a replica.

    Returns:
        List of `Collective`.

    Raises:
        ValueError: one is of a kind, over groups, or at a time that the model does not count.
    """
    if len({place[2] for place in coordinates}) > 1:
        raise ValueError('The slice has chips along three axes, and the model counts two. Use v2, v3, v5e or v6e.')
    before, _, entry = hlo.partition('\nENTRY ')
    if hidden := _INSTRUCTION.search(before):
        raise ValueError(
            f'{hidden[1]} is a part of another operation, which may run several at the same time, and only operations '
            'in turn are counted. Change the program so that the compiler leaves it alone.')
    return [_collective(line, *instruction.groups(), coordinates) for line in entry.splitlines()
            if (instruction := _INSTRUCTION.search(line))]


def _collective(line, name, shape, kind, coordinates):
    groups = _GROUPS.search(line)
    if kind not in _LAPS or not groups:
        raise ValueError(
            f'{name} is a {kind}{"" if groups else " without a list of groups"}. Counted are {", ".join(_LAPS)} over '
            'listed groups: change the program so that the compiler leaves no other.')
    groups = [list(map(int, group.split(','))) for group in groups[1].strip('{}').split('},{')]
    num_bytes = sum(int(bits) // 8 * math.prod(map(int, filter(None, sizes.split(','))))
                    for bits, sizes in _TENSOR.findall(shape))
    if kind == 'reduce-scatter':
        num_bytes *= len(groups[0])
    return Collective(kind, groups, num_bytes, _parts(line, name, kind, groups, num_bytes, coordinates))


def _parts(line, name, kind, groups, num_bytes, coordinates):
    axis = _axis(groups, coordinates)
    if axis is not None:
        return [[Ring(axis, len(groups[0]), num_bytes, _LAPS[kind])]]
    rings = _RINGS.search(line)
    if kind != 'all-reduce' or not rings:
        raise ValueError(f'{name} is a {kind} over groups that are no lines of the torus, and the compiler notes no '
                         'rings along x and y. Take a slice of 4 x 4 chips or more, or groups of all chips of a line.')
    sizes, dimensions = ([list(map(int, part.split())) for part in text.strip('{}').split('},{')]
                         for text in rings.groups())
    return [_phases(*part, num_bytes / len(sizes)) for part in zip(dimensions, sizes)]


def _phases(dimensions, sizes, num_bytes):
    return [Ring(_AXES_OF_COMPILER[dimension], size, num_bytes / math.prod(sizes[:phase]), _LAPS['all-reduce'])
            for phase, (dimension, size) in enumerate(zip(dimensions, sizes))]


def _axis(groups, coordinates):
    """Returns the axis such that every group has all chips of one line along it, or None."""
    for axis in range(len(AXES)):
        length = len({place[axis] for place in coordinates})
        chips = [{coordinates[replica][:3] for replica in group} for group in groups]
        if all(len(group) == length == len({place[axis] for place in group}) for group in chips):
            return axis
    return None


def traffic(found, coordinates):
    """Counts what collectives send, one after another.

    Args:
        found: list of `Collective`.
        coordinates: list of `(x, y, z, core of the chip)`, one a replica.

    Returns:
        `Traffic`.
    """
    phases = [rings for collective in found for rings in zip(*collective.parts)]
    by_axis = [[sum(ring.link_bytes(coordinates) for ring in rings if ring.axis == axis) for axis in range(len(AXES))]
               for rings in phases]
    return Traffic(tuple(map(sum, zip(*by_axis))), sum(map(max, by_axis)),
                   sum(max(ring.steps for ring in rings) for rings in phases))
