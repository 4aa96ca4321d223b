"""Topologies of TPUs that the compiler knows, their memory, and whether a pipeline fits."""

import math

from lingpipe import spelling
from lingpipe.partition import accelerators

# A chip of v4 is two devices for the compiler, but one for TensorFlow and the planner.
_DEVICES_OF_AN_ACCELERATOR = {'v4': 2}
_TOPOLOGIES = (
    'v2:1x1', 'v2:2x2', 'v2:4x4', 'v3:1x1', 'v3:2x2', 'v3:4x4', 'v3:4x8', 'v3:16x16', 'v3:16x32', 'v3:32x32',
    'v4:1x1x1', 'v4:2x2x1', 'v4:2x2x2', 'v4:2x2x4', 'v5e:1x1', 'v5e:2x2', 'v5e:2x4', 'v5e:4x4', 'v5e:8x8',
    'v5p:1x1x1', 'v5p:2x2x1', 'v5p:2x2x2', 'v6e:1x1', 'v6e:2x2', 'v6e:2x4', 'v6e:4x4')
KINDS = tuple(dict.fromkeys(topology.split(':')[0] for topology in _TOPOLOGIES))


def memory(topology: str) -> int:
    """Return the bytes that the compiler lets a program use on one device of a topology."""
    kind = topology.split(':')[0]
    return accelerators.find(kind).memory // _DEVICES_OF_AN_ACCELERATOR.get(kind, 1)


def mesh(topology: str) -> list[int]:
    """Return the sizes `[x, y, z, cores of a chip]` that TensorFlow finds on such a system.

    For TensorFlow a chip of v4 is one core, although it is two devices for the compiler.
    """
    kind, shape = topology.split(':')
    sizes = [int(size) for size in shape.split('x')]
    return [*sizes, *[1] * (3 - len(sizes)), 2 if kind in ('v2', 'v3') else 1]


def check(topology: str) -> None:
    """Raise ValueError if a topology is not known."""
    if topology not in _TOPOLOGIES:
        raise ValueError(
            f'tpu_topology={topology!r} is unknown'
            f'{spelling.did_you_mean(str(topology), _TOPOLOGIES, see_all="lingpipe/tools/tpu_compile/topologies.py")}')


def check_room(topology: str, num_partitions: int, num_replicas: int = 1) -> None:
    """Raise ValueError if a topology is not known, or has no room for a pipeline.

    Args:
        num_partitions: K, each on a device of TensorFlow: a chip, or half a chip of v2 and v3.
    """
    check(topology)
    wanted, room = num_partitions * num_replicas, math.prod(mesh(topology))
    if wanted > room:
        larger = [name for name in _TOPOLOGIES
                  if name.split(':')[0] == topology.split(':')[0] and math.prod(mesh(name)) >= wanted]
        times = f' times num_replicas={num_replicas}' if num_replicas > 1 else ''
        raise ValueError(
            f'num_partitions={num_partitions}{times} is more than the {room} device{"s" if room > 1 else ""} that '
            f'TensorFlow finds on tpu_topology={topology!r}. Set {"their product" if times else "it"} to {room} or less'
            f'{f", or tpu_topology to {larger[0]!r}" if larger else ""}.')
