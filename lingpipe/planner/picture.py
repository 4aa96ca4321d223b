"""A plan for people: the memory of each device as a picture, sizes in words, and how deep a model may be."""

import bisect
import itertools
import re
from typing import Any, NamedTuple

import numpy as np

from lingpipe import schedules
from lingpipe.partition import layer_memory, memory_model
from lingpipe.planner import plans
from lingpipe.planner.plans import KINDS

LEGEND = {
    'weights': ('weights', '#7fb2e5'), 'slots': ('optimizer slots', '#b9a3e3'), 'gradients': ('gradients', '#6cc08b'),
    'boundary': ('boundary activations', '#e58f8f'), 'working': ('working activations', '#f4c266')}
_SHOWN_UNITS = {'TiB': 2**40, 'GiB': 2**30, 'MiB': 2**20, 'KiB': 2**10}
_UNITS = {'': 1, 'b': 1, **{f'{letter}b': 1000 ** power for power, letter in enumerate('kmgt', 1)},
          **{f'{letter}ib': 1024 ** power for power, letter in enumerate('kmgt', 1)}}


class Depth(NamedTuple):
    """How often a model repeats its layers."""

    kind: str  # class of the layers that are repeated
    num_now: int
    largest: int  # how many would fit


def largest_depth(plan: plans.Plan, num_devices: int = 1) -> Depth | None:
    """Finds the largest model of the same kind that fits on some devices, with the other settings of a plan.

    The models of a family differ in how often layers are repeated: all runs of layers of equal sizes are made longer or
    shorter by the same factor.

    Args:
        plan: `Plan` with a memory limit.
        num_devices: K.

    Returns:
        None if no layer is repeated, or not even one of each repeated layer fits, or the schedule is a user's own or
        has several stages on a device.
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
    """Fills one device after the other: a longer run never needs less, so no other cut needs fewer devices."""
    start = 0
    for device in range(num_devices):
        ends = np.arange(start + 1, num_layers + 1)
        needs = estimate(np.full_like(ends, device), np.full_like(ends, start), ends)
        start += int(np.searchsorted(needs, limit, 'right'))
        if start == num_layers:
            return True
    return False


def to_bytes(field: str, size: int | str) -> int:
    """Returns the number of bytes of a size such as '16GiB', '8 GB', '16e9' or 1024.

    Raises:
        ValueError: it is not a size; the message names the field.
    """
    match = re.fullmatch(r'\s*(\d+(?:\.\d*)?(?:e\d+)?)\s*([a-z]*)\s*', str(size).lower())
    if match is None or match[2] not in _UNITS or not float(match[1]):
        raise ValueError(f'{field}={size!r} is no size of a memory. Write it as 16GiB, 40GB or as a number of bytes, '
                         'as 16e9.')
    return round(float(match[1]) * _UNITS[match[2]])


def to_text(num_bytes: float) -> str:
    """Returns a number of bytes in its largest fitting unit from KiB to TiB, such as '1.50 GiB'."""
    unit = _unit(num_bytes)
    return f'{num_bytes / _SHOWN_UNITS[unit]:,.2f} {unit}'


def _unit(num_bytes):
    return next((unit for unit, size in _SHOWN_UNITS.items() if num_bytes >= size), 'KiB')


def figure(plan: plans.Plan, title: str) -> Any:
    """Draws the memory of each device by kind, and the limit, as a figure of `drawing`."""
    from lingpipe import drawing  # here, because matplotlib takes a while to import
    limit = plan.setting.memory_limit
    unit = _unit(max([*plan.device_bytes, limit or 0]))
    blocks = []
    for device, sizes in enumerate(zip(*map(plan.bytes_of, KINDS))):
        ends = [num_bytes / _SHOWN_UNITS[unit] for num_bytes in itertools.accumulate(sizes)]
        blocks += [drawing.Block(device, *block) for block in zip(KINDS, [0.0, *ends], ends)]
    names = [f'device {device}: {to_text(num_bytes)}' for device, num_bytes in enumerate(plan.device_bytes)]
    return drawing.rows([drawing.Rows(title, names, blocks)], LEGEND, unit, limit and limit / _SHOWN_UNITS[unit])
