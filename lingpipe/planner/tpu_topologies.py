"""The arrangements of TPUs that the TPU compiler knows, and the memory that it gives a program on each."""

from lingpipe import spelling

# Bytes that the compiler of libtpu 0.0.51 has to give, by its own error messages: less than the maker's figures, and on v4 a
# core's, not a chip's.
_HBM_GIB = {'v2': 7.48, 'v3': 15.48, 'v4': 15.25, 'v5e': 15.75, 'v5p': 95.73, 'v6e': 31.24}
_DEVICES = {
    'v2:1x1': 2, 'v2:2x2': 8, 'v2:4x4': 32, 'v3:1x1': 2, 'v3:2x2': 8, 'v3:4x4': 32, 'v3:4x8': 64,
    'v4:1x1x1': 2, 'v4:2x2x1': 8, 'v4:2x2x2': 16, 'v4:2x2x4': 32, 'v5e:1x1': 1, 'v5e:2x2': 4, 'v5e:2x4': 8, 'v5e:4x4': 16,
    'v5e:8x8': 64, 'v5p:1x1x1': 1, 'v5p:2x2x1': 4, 'v5p:2x2x2': 8, 'v6e:1x1': 1, 'v6e:2x2': 4, 'v6e:2x4': 8, 'v6e:4x4': 16}


def memory(topology):
    """Returns the bytes that the compiler lets a program use on one device of a topology."""
    return int(_HBM_GIB[topology.split(':')[0]] * 2**30)


def mesh(topology):
    """Returns the sizes `[x, y, z, cores of a chip]` that TensorFlow finds on such a system.

    To TensorFlow a chip of v4 is one core, although the compiler takes it for two devices.

    Args:
        topology: one that `check` lets pass.
    """
    kind, sizes = topology.split(':')
    sizes = [int(size) for size in sizes.split('x')]
    return [*sizes, *[1] * (3 - len(sizes)), 2 if kind in ('v2', 'v3') else 1]


def check(topology, num_devices=1):
    """Raises ValueError where a topology is not known, or has fewer devices than are wanted.

    Args:
        topology: chips in each direction, such as 'v5e:2x2'. A chip of v2, v3 and v4 is two devices, others are one.
        num_devices: number of devices wanted.
    """
    if topology not in _DEVICES:
        raise ValueError(
            f'tpu_topology={topology!r} is unknown'
            f'{spelling.did_you_mean(str(topology), _DEVICES, see_all="lingpipe/planner/tpu_topologies.py")}')
    if not 1 <= num_devices <= _DEVICES[topology]:
        larger = [name for name, count in _DEVICES.items() if name.split(':')[0] == topology.split(':')[0] and count >= num_devices]
        raise ValueError(
            f'num_devices={num_devices} does not go with tpu_topology={topology!r}, which has {_DEVICES[topology]}. '
            f'Use {f"{larger[0]!r}" if larger else "fewer devices, 1 at least"}.')
