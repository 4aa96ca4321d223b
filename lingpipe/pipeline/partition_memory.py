"""Which cuts keep to the memory of a device, and why, in numbers, none does."""

import math

import numpy as np

_NUM_STAGE_LIMITS = 9


class MemoryBudget:
    """The memory of each device, and what runs of layers need of it.

    Args:
        memory: bytes that each of L layers needs, or a function `(partitions, starts, ends) -> bytes` of integer arrays.
        limit: bytes of one device.
        num_layers: L.
        num_partitions: number of partitions.
        num_devices: number of devices, K; partition s is on device s % K.
    """

    def __init__(self, memory, limit, num_layers, num_partitions, num_devices):
        self._needs = memory if callable(memory) else sum_of_layers(memory)
        self._limit = limit
        self._num_layers, self._num_partitions, self._num_devices = num_layers, num_partitions, num_devices

    def stage_limits(self):
        """Returns what to allow each stage, the most first; with V stages on a device down to a V-th of its memory."""
        num_stages = math.ceil(self._num_partitions / self._num_devices)
        return [self._limit] if num_stages == 1 else np.linspace(self._limit, self._limit / num_stages, _NUM_STAGE_LIMITS)

    def first_starts(self, limit):
        """Finds how far back each partition may reach.

        Args:
            limit: bytes of a partition.

        Returns:
            Array `[partitions, L]`: partition k, where it ends at e, starts at `[k, e - 1]` or later; e itself where not even
            layer e - 1 alone fits.
        """
        partitions = np.arange(self._num_partitions)[:, np.newaxis]
        ends = np.broadcast_to(np.arange(1, self._num_layers + 1), [self._num_partitions, self._num_layers])
        low, high = np.zeros_like(ends), ends.copy()
        while np.any(low < high):
            middle = np.minimum((low + high) // 2, ends - 1)
            fits = self._needs(partitions, middle, ends) <= limit
            high, low = np.where(fits & (low < high), middle, high), np.where(fits | (low == high), low, middle + 1)
        return low

    def fits(self, ends):
        """Says whether the stages of each device keep to its limit together."""
        return max(self._device_bytes(ends)) <= self._limit

    def require(self, ends):
        """Raises ValueError when end indices that a user has written down do not keep to the limit."""
        used = self._device_bytes(ends)
        if max(used) > self._limit:
            device = int(np.argmax(used))
            raise ValueError(
                f'partition_by={list(ends)} gives device {device} {_text(used[device])} to hold, more than '
                f"memory_limit={_text(self._limit)}. Set partition_by='time' or 'flops' to have a cut found, or raise memory_limit.")

    def explain(self, closest=None):
        """Says why no cut was found, in numbers, and what to do.

        Args:
            closest: end indices of stages that keep to the limit one by one, but not together with others of their device;
                None where no contiguous cut keeps to it.
        """
        reason, change = self._devices_too_full(closest) if closest else self._layers_too_large()
        return (f'memory_limit={_text(self._limit)} is too little for num_partitions={self._num_partitions}: {reason} {change} '
                'Less is needed with recompute on, smaller micro-batches, or an optimizer with fewer slots.')

    def _device_bytes(self, ends):
        used = np.zeros(self._num_devices)
        for stage, (start, end) in enumerate(zip([0, *ends], ends)):
            used[stage % self._num_devices] += self._bytes(stage, start, end)
        return used

    def _bytes(self, partition, start, end):
        return float(self._needs(*np.array([[partition], [start], [end]]))[0])

    def _layers_too_large(self):
        """Fills one partition after the other up to the limit; partitions beyond the last need no more than the last."""
        ends, last = [0], self._num_partitions - 1
        while ends[-1] < self._num_layers:
            number, start = min(len(ends) - 1, last), ends[-1]
            rest = np.arange(start + 1, self._num_layers + 1)
            fits = self._needs(np.full_like(rest, number), np.full_like(rest, start), rest) <= self._limit
            if not fits[0]:
                return self._layer_too_large(number, start)
            ends.append(int(rest[fits][-1]))
        needed = len(ends) - 1
        held = ends[min(self._num_partitions, needed)]
        return (f'filled up to it, these hold {held} of {self._num_layers} layers, and all layers need at least {needed} '
                'partitions.', f'Set num_partitions={needed} or more, or raise memory_limit.')

    def _layer_too_large(self, number, layer):
        needed = _text(self._bytes(number, layer, layer + 1))
        return (f'layers[{layer}] alone needs {needed} in partition {number}.',
                f'Raise memory_limit to {needed} at least, or split this layer into smaller ones.')

    def _devices_too_full(self, ends):
        used = self._device_bytes(ends)
        device, total = int(np.argmax(used)), float(used.sum())
        stages = list(range(device, len(ends), self._num_devices))
        needed = math.ceil(total / self._limit)
        remedy = (f'Use at least {needed} devices' if needed > self._num_devices else
                  f'Together the {self._num_devices} devices need {_text(total)}. Use fewer stages on each device, more devices')
        return (f'its stages balanced, device {device} needs {_text(used[device])} for its stages {stages}.',
                f'{remedy}, or raise memory_limit.')


def sum_of_layers(layer_bytes):
    """Returns the memory function of layers whose bytes simply add up.

    Args:
        layer_bytes: sequence of L numbers.
    """
    prefix = np.concatenate([[0], np.cumsum(np.asarray(layer_bytes))])
    return lambda partitions, starts, ends: prefix[ends] - prefix[starts]


def _text(num_bytes):
    return f'{math.ceil(num_bytes):,} bytes'
