"""Schedules: which action each device runs, and in which order.

A schedule can be made, read, simulated and drawn without TensorFlow::

    schedule = make_schedule('1f1b', num_devices=4, num_micro_batches=8)
    timeline = schedule.simulate()
    print(timeline.draw(), timeline.bubble_fraction, schedule.peak_memory())
"""

import importlib
import inspect
import pkgutil
from collections.abc import Iterable, Sequence
from typing import Any

from lingpipe import wording
from lingpipe.schedules.files import from_csv, from_lists
from lingpipe.schedules.orders import (
    circular,
    gpipe,
    interleaved_1f1b,
    one_forward_one_backward,
    zb_h1,
)
from lingpipe.schedules.schedule_type import NUM_VIRTUAL_STAGES, SCHEDULES, Schedule
from lingpipe.schedules.simulation import StageCosts
from lingpipe.schedules.timeline import BACKWARD, FORWARD, WEIGHT, Action, Span, StepTimes

__all__ = [
    'Action', 'BACKWARD', 'FORWARD', 'NUM_VIRTUAL_STAGES', 'SCHEDULES', 'Schedule', 'Span', 'StageCosts', 'StepTimes',
    'WEIGHT', 'circular', 'for_costs', 'from_csv', 'from_lists', 'gpipe', 'interleaved_1f1b', 'make_schedule',
    'one_forward_one_backward', 'zb_h1']

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f'{__name__}.{_module.name}')


def make_schedule(schedule: str | Iterable[Iterable[Any]], num_devices: int, num_micro_batches: int,
                  num_virtual_stages: int = 1) -> Schedule:
    """Make a schedule from a name, a CSV file or a list of actions.

    Args:
        schedule: a name of `SCHEDULES`, the path of a CSV file, or a list with one list of actions per device.
            `files.py` describes both formats.
        num_virtual_stages: V, the number of stages on each device. Leave V at 1 for a file or a list.

    Raises:
        ValueError: an argument is wrong, or the arguments do not fit together. The message says what to change.
    """
    sizes = num_devices, num_micro_batches, num_virtual_stages
    for field, value in zip(('num_devices', 'num_micro_batches', 'num_virtual_stages'), sizes):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(
                f'{field}={value!r} is not possible: it must be an integer of 1 or more. Set it to 1 at least.')
    if not isinstance(schedule, Iterable):
        raise ValueError(f'schedule={schedule!r} must be a name, path or list. Set it to one of {sorted(SCHEDULES)}.')
    if not isinstance(schedule, str):
        return _fitting(from_lists(schedule), *sizes)
    if schedule.endswith('.csv'):
        return _fitting(from_csv(schedule), *sizes)
    if schedule not in SCHEDULES:
        raise ValueError(
            f'schedule={schedule!r} is unknown: it must be one of {sorted(SCHEDULES)}, the path of a .csv file, or a '
            f"list of each device's actions{wording.did_you_mean(schedule, SCHEDULES)}")
    fixed = NUM_VIRTUAL_STAGES[schedule]
    if fixed is None:
        return SCHEDULES[schedule](*sizes)
    if fixed != num_virtual_stages:
        others = ' or '.join(f'schedule={name!r}' for name, number in sorted(NUM_VIRTUAL_STAGES.items())
                             if number == num_virtual_stages or number is None and num_virtual_stages > 1)
        raise ValueError(
            f'num_virtual_stages={num_virtual_stages} does not go with schedule={schedule!r}, which has {fixed} on '
            f'each device. Set num_virtual_stages={fixed}, or {others}.')
    return SCHEDULES[schedule](num_devices, num_micro_batches)


def for_costs(schedule: Schedule, costs: Sequence[StageCosts]) -> Schedule:
    """Adapt the order of actions in a named schedule to the times that its stages take.

    Returns:
        The new schedule if its simulated step is shorter, else `schedule`.
    """
    make = SCHEDULES.get(schedule.name)
    if make is None or 'costs' not in inspect.signature(make).parameters:
        return schedule
    sizes = [schedule.num_devices, schedule.num_micro_batches]
    if NUM_VIRTUAL_STAGES[schedule.name] is None:
        sizes.append(schedule.num_virtual_stages)
    suited = make(*sizes, costs=costs)
    return min(schedule, suited, key=lambda each: each.simulate(costs).seconds)


def _fitting(schedule: 'Schedule', num_devices: int, num_micro_batches: int, num_virtual_stages: int) -> Any:
    """Return `schedule`, or raise ValueError if it does not match the other arguments."""
    for found, wanted, what, remedy in [
            (schedule.num_devices, num_devices, 'devices, one per row', 'Use {} devices'),
            (schedule.num_micro_batches, num_micro_batches, 'micro-batches', 'Set num_micro_batches={}')]:
        if found != wanted:
            raise ValueError(f'Schedule {schedule.name!r} is for {found} {what}, not for {wanted}. '
                             f'{remedy.format(found)}, or give an order for {wanted}.')
    counts = [schedule.stage_devices.count(device) for device in range(num_devices)]
    if num_virtual_stages > 1 and set(counts) != {num_virtual_stages}:
        raise ValueError(
            f'Schedule {schedule.name!r} has {counts} stages on its devices, not num_virtual_stages='
            f'{num_virtual_stages} on each. Leave num_virtual_stages at 1: the order says itself where its stages are.')
    return schedule
