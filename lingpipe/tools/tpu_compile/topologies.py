"""Topologies of TPUs that the compiler knows: their devices and memory, and whether a pipeline fits."""

import math

from lingpipe import spelling
from lingpipe.partition import accelerators

# A chip of v4 is two devices for the compiler, but one for TensorFlow and the planner.
_DEVICES_OF_AN_ACCELERATOR = {'v4': 2}
_DEVICES = {
    'v2:1x1': 2, 'v2:2x2': 8, 'v2:4x4': 32, 'v3:1x1': 2, 'v3:2x2': 8, 'v3:4x4': 32, 'v3:4x8': 64,
    'v3:16x16': 512, 'v3:16x32': 1024, 'v3:32x32': 2048,
    'v4:1x1x1': 2, 'v4:2x2x1': 8, 'v4:2x2x2': 16, 'v4:2x2x4': 32, 'v5e:1x1': 1, 'v5e:2x2': 4, 'v5e:2x4': 8,
    'v5e:4x4': 16, 'v5e:8x8': 64,
    'v5p:1x1x1': 1, 'v5p:2x2x1': 4, 'v5p:2x2x2': 8, 'v6e:1x1': 1, 'v6e:2x2': 4, 'v6e:2x4': 8,
    'v6e:4x4': 16}
KINDS = tuple(dict.fromkeys(topology.split(':')[0] for topology in _DEVICES))


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


def check(topology: str, num_devices: int = 1) -> None:
    """Raise ValueError if a topology is not known, or has fewer devices than are wanted.

    Args:
        topology: chips in each direction, such as 'v5e:2x2'. A chip of v2, v3 and v4 is two devices, others are one.
    """
    if topology not in _DEVICES:
        raise ValueError(
            f'tpu_topology={topology!r} is unknown'
            f'{spelling.did_you_mean(str(topology), _DEVICES, see_all="lingpipe/tools/tpu_compile/topologies.py")}')
    if not 1 <= num_devices <= _DEVICES[topology]:
        larger = [name for name, count in _DEVICES.items()
                  if name.split(':')[0] == topology.split(':')[0] and count >= num_devices]
        raise ValueError(
            f'num_devices={num_devices} does not go with tpu_topology={topology!r}, which has {_DEVICES[topology]}. '
            f'Use {f"{larger[0]!r}" if larger else "fewer devices, 1 at least"}.')


def check_room(topology: str, num_partitions: int, num_replicas: int = 1) -> None:
    """Raise ValueError if a topology is not known, or has no room for a pipeline.

    Args:
        num_partitions: K, each on a device of TensorFlow: a chip, or half a chip of v2 and v3.
    """
    check(topology)
    wanted, room = num_partitions * num_replicas, math.prod(mesh(topology))
    if wanted > room:
        larger = [name for name in _DEVICES
                  if name.split(':')[0] == topology.split(':')[0] and math.prod(mesh(name)) >= wanted]
        times = f' times num_replicas={num_replicas}' if num_replicas > 1 else ''
        raise ValueError(
            f'num_partitions={num_partitions}{times} is more than the {room} device{"s" if room > 1 else ""} that '
            f'TensorFlow finds on tpu_topology={topology!r}. Set {"their product" if times else "it"} to {room} or less'
            f'{f", or tpu_topology to {larger[0]!r}" if larger else ""}.')
