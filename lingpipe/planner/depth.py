"""How deep a model of the same kind may be: its repeated layers are made more or fewer until it fills the devices."""

import bisect
import itertools
from typing import NamedTuple

import numpy as np

from lingpipe import schedules
from lingpipe.partition import layer_memory, memory_model


class Depth(NamedTuple):
    """How often a model repeats its layers.

    Attributes:
        kind: class of the layers that are repeated.
        num_now: how many of them the model has.
        largest: how many would fit.
    """

    kind: str
    num_now: int
    largest: int


def largest_depth(plan, num_devices=1):
    """Finds the largest model of the same kind that fits on some devices, all else being as in a plan.

    A family of models differs in how often layers are repeated: in runs of layers that are equal in all sizes, all runs are
    made longer or shorter by the same factor.

    Args:
        plan: `Plan` with a memory limit.
        num_devices: K.

    Returns:
        `Depth`, or None where no layer is repeated, not even one of each fits, or the schedule has several stages on a device or
        is a user's own.
    """
    setting, schedule = plan.setting, plan.schedule
    if schedule.num_virtual_stages > 1 or schedule.name not in schedules.SCHEDULES:
        return None
    live = layer_memory.live_micro_batches(
        schedules.make_schedule(schedule.name, num_devices, schedule.num_micro_batches))
    runs = _runs(list(zip(setting.stack.analyses, setting.stack.memories(plan.micro_batch_size))))
    repeated = [run for run in runs if len(run) > 1]
    if not repeated:
        return None
    num_now = sum(map(len, repeated))

    def does_not_fit(depth):
        memories = [memory for _, memory in _scaled(runs, depth / num_now)]
        return not _fits(
            memory_model.MemoryModel(memories, live, plan.recompute, setting.num_slots), len(memories), num_devices,
            setting.memory_limit)

    most = len(repeated)
    while not does_not_fit(most):
        most *= 2
    largest = bisect.bisect_left(range(most), True, key=does_not_fit) - 1
    kinds = sorted({run[0][0].kind for run in repeated})
    return Depth(' and '.join(kinds), num_now, largest) if largest >= len(repeated) else None


def _runs(layers):
    return [list(run) for _, run in itertools.groupby(layers, lambda pair: (pair[0].flops, pair[1]))]


def _scaled(runs, factor):
    for run in runs:
        yield from [run[0]] * (max(1, round(factor * len(run))) if len(run) > 1 else 1)


def _fits(estimate, num_layers, num_devices, limit):
    """Fills one device after the other: as a longer run never needs less, no other cut needs fewer devices."""
    start = 0
    for device in range(num_devices):
        ends = np.arange(start + 1, num_layers + 1)
        needs = estimate(np.full_like(ends, device), np.full_like(ends, start), ends)
        start += int(np.searchsorted(needs, limit, 'right'))
        if start == num_layers:
            return True
    return False
