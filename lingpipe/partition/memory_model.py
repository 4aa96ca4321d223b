"""Peak memory of a partition.

The peak is in a backward pass, at some layer i::

    layers of the partition                 0 ... i-1            i                            i+1 ...
    weights, slots, old gradient sums       yes                  yes                          yes
    kept by the current micro-batch
      recompute='none', 'selective',        yes                  yes                          yes: arguments of the
        'stage'                                                                               backward function, held
                                                                                              until it ends
      recompute='layer'                     inputs               inputs                       no
    the current layer                                            its backward pass, after
                                                                 its forward one with 'layer'
    new gradient sums                                            included                     yes, but not with 'layer'
    kept by other micro-batches             by schedule and recomputation

All sizes are counted in traced graphs, see `layer_memory`.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from lingpipe.partition.layer_memory import LayerMemory

_NUM_STAGE_LIMITS = 9


class MemoryBudget:
    """The memory limit of each device, and the bytes that contiguous layers need.

    Args:
        memory: function from int arrays `(partitions, starts, ends)` to an array of bytes, such as a `MemoryModel`.
        devices: index of the device of each partition, such as `Schedule.stage_devices`.
    """

    def __init__(self, memory: Any, limit: float, num_layers: int, devices: Sequence[int]) -> None:
        self._needs, self._limit, self._num_layers = memory, limit, num_layers
        self._devices, self._num_partitions = np.array(devices), len(devices)

    def stage_limits(self) -> list[np.ndarray]:
        """Return limits to try in turn, from high to low. Each is an array `[partitions, 1]` of bytes per stage."""
        num_stages = np.bincount(self._devices)[self._devices, np.newaxis]
        if np.all(num_stages == 1):
            return [self._limit / num_stages]
        # In the last array, each of V stages on a device gets 1 / V of the device's limit.
        return list(np.linspace(self._limit, self._limit / num_stages, _NUM_STAGE_LIMITS))

    def first_starts(self, limits: np.ndarray) -> np.ndarray:
        """Find the earliest start of each partition for each end.

        Args:
            limits: bytes `[partitions, 1]`.

        Returns:
            Array `[partitions, L]`. Entry `[k, e - 1]` is the earliest start of a partition k that ends at e. The entry
            is e if no start is possible.
        """
        partitions = np.arange(self._num_partitions)[:, np.newaxis]
        ends = np.broadcast_to(np.arange(1, self._num_layers + 1), [self._num_partitions, self._num_layers])
        low, high = np.zeros_like(ends), ends.copy()
        while np.any(low < high):
            middle = np.minimum((low + high) // 2, ends - 1)
            fits = self._needs(partitions, middle, ends) <= limits
            high, low = np.where(fits & (low < high), middle, high), np.where(fits | (low == high), low, middle + 1)
        return low

    def fits(self, ends: list[int]) -> bool:
        """Return whether each device can hold all its stages."""
        return max(self._device_bytes(ends)) <= self._limit

    def _device_bytes(self, ends):
        used = self._needs(np.arange(self._num_partitions), np.array([0, *ends[:-1]]), np.array(ends))
        return np.bincount(self._devices, used)

    def require(self, ends: list[int]) -> None:
        """Raise ValueError if a device needs more than the limit. Partition k ends before layer `ends[k]`."""
        used = self._device_bytes(ends)
        if max(used) > self._limit:
            device = int(np.argmax(used))
            raise ValueError(
                f'partition_by={list(ends)} gives device {device} {_text(used[device])} to hold, more than '
                f"memory_limit={_text(self._limit)}. Set partition_by='time' or 'flops' to have a cut found, or raise "
                'memory_limit.')

    def explain(self, closest: list[int] | None = None) -> str:
        """Return an error message that says why no cut was found, and what to do.

        Args:
            closest: end indices of a cut in which every single stage fits. None: there is no such cut.
        """
        reason, change = self._devices_too_full(closest) if closest else self._layers_too_large()
        return (f'memory_limit={_text(self._limit)} is too little for num_partitions={self._num_partitions}: {reason} '
                f'{change} Less is needed with recompute on, smaller micro-batches, or an optimizer with fewer slots.')

    def _layers_too_large(self):
        """Return the reason why no cut fits, and a remedy."""
        ends, last = [0], self._num_partitions - 1
        while ends[-1] < self._num_layers:  # fill partitions up to the limit
            number, start = min(len(ends) - 1, last), ends[-1]  # extra partitions count like the last one
            rest = np.arange(start + 1, self._num_layers + 1)
            fits = self._needs(np.full_like(rest, number), np.full_like(rest, start), rest) <= self._limit
            if not fits[0]:
                return self._layer_too_large(number, start)
            ends.append(int(rest[fits][-1]))
        needed = len(ends) - 1
        held = ends[min(self._num_partitions, needed)]
        return (f'at most {held} of {self._num_layers} layers fit, and all layers need at least '
                f'{needed} partitions.', f'Set num_partitions={needed} or more, or raise memory_limit.')

    def _layer_too_large(self, number, layer):
        needed = _text(float(self._needs(*np.array([[number], [layer], [layer + 1]]))[0]))
        return (f'layers[{layer}] alone needs {needed} in partition {number}.',
                f'Raise memory_limit to {needed} at least, or split this layer into smaller ones.')

    def _devices_too_full(self, ends):
        used = self._device_bytes(ends)
        device = int(np.argmax(used))
        stages = np.flatnonzero(self._devices == device).tolist()
        return (f'its stages balanced, device {device} needs {_text(used[device])} for its stages {stages}.',
                'Use fewer stages on each device, more devices, or raise memory_limit.')


def _text(num_bytes):
    return f'{math.ceil(num_bytes):,} bytes'


class MemoryModel:
    """The bytes that contiguous layers need as one partition. More layers never need fewer bytes.

    Args:
        live_micro_batches: result of `layer_memory.live_micro_batches`.
        recompute: what partitions recompute. 'selective' counts like 'stage'.
        num_slots: number of slots and moving averages per weight on a device, such as 2 for Adam.
    """

    def __init__(self, memories: list[LayerMemory], live_micro_batches: Sequence[int], recompute: str,
                 num_slots: float) -> None:
        columns = LayerMemory(*np.array(memories, np.int64).T)
        # If a later partition has more live micro-batches, earlier partitions count as many.
        live = np.maximum.accumulate(np.array(live_micro_batches)[::-1])[::-1, np.newaxis]
        kept = columns.read_inputs - columns.repeated_reads + columns.internals + columns.read_outputs
        lasting = 2 * columns.weights + np.ceil(num_slots * columns.weights).astype(np.int64) + columns.state
        if recompute == 'layer':
            passing, at_work = columns.inputs - columns.repeated_inputs, columns.recomputed
            new_sums = 0 * columns.weights
            entering = (live - 1) * columns.inputs + columns.repeated_inputs
        else:
            passing, at_work, new_sums = 0 * kept, columns.backward, columns.weights
            copies = live if recompute == 'none' else 1  # 'selective' can retain as little as 'stage'
            lasting = lasting + copies * kept
            entering = copies * columns.repeated_reads + (live - copies) * columns.inputs
        self._lasting = prefix_sums(lasting + 0 * live)
        self._passing, self._new_sums = prefix_sums(passing), prefix_sums(new_sums)
        self._fullest_start = RangeMaximum(entering - self._lasting[:, :-1] - self._passing[:-1])
        self._fullest_layer = RangeMaximum((self._passing[1:] + at_work - self._new_sums[1:])[np.newaxis])

    def __call__(self, partitions: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
        """Return the bytes of partitions with layers `start` to `end - 1`. Each partition has at least one layer."""
        return (self._lasting[partitions, ends] + self._fullest_start(partitions, starts, ends)
                + self._fullest_layer(0, starts, ends) + self._new_sums[ends])

    def of_cut(self, ends: Sequence[int]) -> np.ndarray:
        """Return the bytes of each partition of one cut."""
        return self(np.arange(len(ends)), np.array([0, *ends[:-1]]), np.array(ends))


class RangeMaximum:
    """A function that returns the largest of `values[row, start:end]`, for arrays of rows, starts and ends."""

    def __init__(self, values: np.ndarray) -> None:
        levels = [values]  # level j has the maximum of every 2^j neighbouring values
        while (width := 2 ** len(levels)) <= values.shape[1]:
            level = levels[-1].copy()
            level[:, :-width // 2] = np.maximum(level[:, :-width // 2], level[:, width // 2:])
            levels.append(level)
        self._table = np.stack(levels)

    def __call__(self, rows: np.ndarray | int, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
        levels = np.frexp(ends - starts)[1] - 1  # two maxima of this level cover the range
        return np.maximum(self._table[levels, rows, starts], self._table[levels, rows, ends - (1 << levels)])


def prefix_sums(values: Any) -> np.ndarray:
    """Return the sums of the first 0, 1, ... values along the last axis."""
    return np.concatenate([np.zeros_like(values[..., :1]), np.cumsum(values, axis=-1)], axis=-1)
