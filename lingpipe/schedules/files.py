"""A user's own schedule, from lists or a CSV file.

Each row lists the actions of one device, in order. Each cell names a stage, a kind and a micro-batch. If a cell names
no stage, the stage is the row's number. Empty cells are ignored. Here two devices run three micro-batches::

    F0, F1, B0, F2, B1, B2                    0F0, 0F1, 0B0, 0F2, 0B1, 0B2
    F0, B0, F1, B1, F2, B2         or         1F0, 1B0, 1F1, 1B1, 1F2, 1B2

A B computes the gradients of inputs and weights. If the same stage and micro-batch have a W, the B computes only the
gradients of inputs. 'I' is another name for B.

CSV files can be from torch.distributed.pipelining. Their sends, receives and shards are ignored::

    F1  0F1                              forward pass of micro-batch 1, through the row's stage; 0F1: through stage 0
    B1, I1                               its backward pass; only the gradients of inputs, if there is also a W1
    W1                                   only the gradients of weights
    (0F1;1B2)OVERLAP_F_B                 two actions, which run one after the other here
    0SEND_F1  1RECV_F1  1SEND_B1  0RECV_B1     what crosses between devices
    0UNSHARD  0RESHARD  0REDUCE_GRAD           shards of weights, and sums of gradients over replicas
"""

import collections
import csv
import itertools
import os
import pathlib
import re
from collections.abc import Iterable
from typing import Any

from lingpipe.schedules.schedule_type import Schedule
from lingpipe.schedules.timeline import BACKWARD, FORWARD, Action

_ACTION = re.compile('([0-9]{1,9})?([FBIW])([0-9]{1,9})')
_COMMUNICATION = re.compile('[0-9]+((SEND|RECV)_[FB][0-9]+|UNSHARD|RESHARD|REDUCE_GRAD)')
_OVERLAP = re.compile(r'\(([^()]*)\)OVERLAP_F_B')


def from_csv(path: str | os.PathLike[str]) -> Schedule:
    """Read a schedule from a CSV file that `Schedule.to_csv` or torch.distributed.pipelining wrote.

    Raises:
        ValueError: the file cannot be read, or contains no valid schedule.
    """
    try:
        lines = pathlib.Path(path).expanduser().read_text(encoding='utf-8-sig').splitlines()
        rows = [row for row in csv.reader(lines) if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f'schedule={str(path)!r} cannot be read: {error}. Give the path of a CSV file.') from error
    return from_lists(rows, name=str(path))


def from_lists(rows: Iterable[Iterable[Any]], name: str = 'own') -> Schedule:
    """Make a schedule from the actions of each device.

    Args:
        rows: for each device, a list of actions. An action is a text such as '1B2', or an `Action`. '' and None are
            ignored.

    Raises:
        ValueError: the actions are not a valid schedule.
    """
    devices = tuple(tuple(action for cell in row if cell is not None for action in _actions(str(cell), name, device))
                    for device, row in enumerate(rows))
    schedule = Schedule(name, *_checked_sizes(devices, name), devices)
    schedule.execution_order()
    return schedule


def _actions(cell: str, name: str, device: int) -> list[Action]:
    """Return the actions that the text `cell` names."""
    overlap = _OVERLAP.fullmatch(cell.strip())  # several actions in a cell
    return [action for part in (overlap[1].split(';') if overlap else [cell])
            for action in _action(part.strip(), name, device)]


def _action(text: str, name: str, device: int) -> list[Action]:
    if not text or _COMMUNICATION.fullmatch(text):
        return []
    match = _ACTION.fullmatch(text)
    if not match:
        raise ValueError(
            f'Schedule {name!r}, device {device}: {text[:60]!r} is not an action. Write a stage (or leave it out, for '
            f"stage {device}), one of the letters 'F', 'B', 'I' and 'W', and a micro-batch, such as '{device}F0'.")
    stage, kind, micro_batch = match.groups()
    return [Action(BACKWARD if kind == 'I' else kind, int(stage or device), int(micro_batch))]


def _checked_sizes(devices: tuple[tuple[Action, ...], ...], name: str) -> tuple[int, int]:
    """Check the actions, and return the numbers of stages and micro-batches."""
    counts = collections.Counter(action for row in devices for action in row)
    homes: dict[int, set[int]] = collections.defaultdict(set)
    for device, row in enumerate(devices):
        for action in row:
            homes[action.stage].add(device)
    if set().union(*homes.values()) != set(range(len(devices))) or not devices:
        raise ValueError(f'Schedule {name!r} has a row without actions. Leave it out, or move a stage there.')
    num_stages, num_micro_batches = 1 + max(homes), 1 + max(action.micro_batch for action in counts)
    needed = (Action(kind, stage, micro_batch) for stage in range(num_stages)
              for micro_batch in range(num_micro_batches) for kind in (FORWARD, BACKWARD))
    for action in itertools.chain(needed, counts):
        if counts[action] != 1:
            raise ValueError(f'Schedule {name!r} has {action} {counts[action]} times, not once. It has {num_stages} '
                             f'stages and {num_micro_batches} micro-batches; correct its row, or another number.')
        if len(homes[action.stage]) > 1:
            raise ValueError(f'Schedule {name!r} has stage {action.stage} on the devices '
                             f'{sorted(homes[action.stage])}. Move all its actions to one, where its weights are.')
    return num_stages, num_micro_batches
