"""A user's own schedule, from lists or a CSV file, checked before anything is built.

There is one row per device and one action per cell, in the order in which the device runs them. Empty cells are
ignored. A cell is stage, kind, micro-batch; if the stage is left out, it is the number of the row. Three
micro-batches over two devices::

    F0, F1, B0, F2, B1, B2                    0F0, 0F1, 0B0, 0F2, 0B1, 0B2
    F0, B0, F1, B1, F2, B2         or         1F0, 1B0, 1F1, 1B1, 1F2, 1B2

A B computes the gradients of inputs and weights, or only of inputs if there is a W of the same stage and micro-batch;
one schedule may have both kinds of B. 'I' is a B that requires its W.

Files of torch.distributed.pipelining, with or without its communication, are read too. Sends, receives and shards must
be on the device of their stage, but are otherwise ignored: tensors are sent where needed as soon as they exist::

    F1  0F1                              forward pass of micro-batch 1, through the stage of the row or stage 0
    B1                                   its backward pass; only the gradients of inputs, if there is also a W1
    I1                                   only the gradients of inputs; there must be a W1
    W1                                   only the gradients of weights
    BW1                                  both, as PyTorch wrote it before 'I' existed, when every B had its W
    (0F1;1B2)OVERLAP_F_B                 two actions, which run one after the other here
    0SEND_F1  1RECV_F1  1SEND_B1  0RECV_B1     what crosses between devices
    0UNSHARD  0RESHARD  0REDUCE_GRAD           shards of weights, and sums of gradients over replicas
"""

import collections
import csv
import io
import os
import pathlib
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from lingpipe.schedules.actions import BACKWARD, FORWARD, WEIGHT, Action
from lingpipe.schedules.schedule_type import SCHEDULES, Schedule

_INPUTS, _WHOLE = 'I', 'BW'
_ACTION = re.compile(f'([0-9]{{1,9}})?({FORWARD}|{BACKWARD}|{_INPUTS}|{WEIGHT}|{_WHOLE})([0-9]{{1,9}})')
_TRANSFER = re.compile('([0-9]{1,9})((?:SEND|RECV)_[FB])([0-9]{1,9})')
_SHARDS = re.compile('([0-9]{1,9})(UNSHARD|RESHARD|REDUCE_GRAD)()')
_OVERLAP = re.compile(r'\(([^()]*)\)OVERLAP_F_B')


class Cell(NamedTuple):
    """One action, or the communication that accompanies actions."""

    kind: str  # 'F', 'B', 'I', 'W', or another word such as 'SEND_F'
    stage: int
    micro_batch: int | None  # None if the word has none

    def __str__(self) -> str:
        return f'{self.stage}{self.kind}{"" if self.micro_batch is None else self.micro_batch}'

    @property
    def is_action(self) -> bool:
        """Whether a device computes something."""
        return self.kind in (FORWARD, BACKWARD, _INPUTS, WEIGHT)


def parse_cell(text: str, device: int) -> list[Cell]:
    """Return the list of the cells in a text: one, or several that overlap; empty if the text is not a cell.

    Args:
        device: number of the cell's row, which is the stage of an action that names none.
    """
    overlap = _OVERLAP.fullmatch(text.strip())
    parts = overlap[1].split(';') if overlap else [text]
    matches = [match for match in (_match(part.strip()) for part in parts) if match]
    if len(matches) < len(parts):
        return []
    return [Cell(BACKWARD if kind == _WHOLE else kind, int(stage or device), int(micro_batch) if micro_batch else None)
            for stage, kind, micro_batch in (match.groups() for match in matches)]


def _match(text: str) -> re.Match | None:
    return _ACTION.fullmatch(text) or _TRANSFER.fullmatch(text) or _SHARDS.fullmatch(text)


_LONGEST_CELL = 60  # characters that an error shows


def from_csv(path: str | os.PathLike[str]) -> Schedule:
    """Read a schedule from a CSV file, as `Schedule.to_csv` or torch.distributed.pipelining writes it.

    Raises:
        ValueError: there is no such file, or its order is impossible.
    """
    try:
        text = pathlib.Path(path).expanduser().read_text(encoding='utf-8-sig')
        rows = [row for row in csv.reader(io.StringIO(text, newline='')) if row]
    except (OSError, ValueError, csv.Error) as error:
        raise ValueError(f'schedule={str(path)!r} cannot be read: {error}. Give the path of a CSV file.') from error
    return from_lists(rows, name=str(path))


def from_lists(rows: Iterable[Iterable[Any]], name: str = 'own') -> Schedule:
    """Make a schedule from the actions of each device.

    Args:
        rows: for each device, the list of its actions: texts such as 'F0' or '1B2', or `Action`s; '' and None
            are ignored.

    Raises:
        ValueError: the name is that of one of LingPipe's schedules, a cell is not an action, an action is missing or
            occurs twice, a stage is on two devices, a device has no stage, an I has no W, or the devices would wait for
            each other forever.
    """
    if name in SCHEDULES:
        raise ValueError(f'name={name!r} is that of a schedule of LingPipe, whose order would replace this one. Choose '
                         'another name.')
    rows = [[cell for cell in row if cell is not None and str(cell).strip()] for row in rows]
    written = [[each for position, cell in enumerate(row) for each in _parse(cell, name, device, position)]
               for device, row in enumerate(rows)]
    devices = tuple(tuple(_action(cell) for cell in row if cell.is_action) for row in written)
    places = _places(devices, name)
    _check_halves(written, places, name)
    num_stages, num_micro_batches = _check_complete(places, len(devices), name)
    schedule = Schedule(name, num_stages, num_micro_batches, devices)
    _check_companions(written, schedule)
    schedule.execution_order()
    return schedule


def _parse(cell: Any, name: str, device: int, position: int) -> list[Cell]:
    found = parse_cell(str(cell), device)
    if not found:
        raise ValueError(
            f'Schedule {name!r}, device {device}, position {position}: {str(cell)[:_LONGEST_CELL]!r} is not an action. '
            f"Write a stage (or leave it out, for stage {device}), one of the letters 'F', 'B', 'I' and 'W', and a "
            f"micro-batch, such as '{device}F0'.")
    return found


def _action(cell: Any) -> Action:
    return Action(BACKWARD if cell.kind == _INPUTS else cell.kind, cell.stage, cell.micro_batch)


def _places(devices: Any, name: str) -> dict[Action, tuple[int, int]]:
    """Return the dictionary from action to (device, position), after checking that no action occurs twice."""
    places, device_of = {}, {}
    for device, actions in enumerate(devices):
        for position, action in enumerate(actions):
            here = f'Schedule {name!r}, device {device}, position {position}: {action}'
            if action in places:
                raise ValueError(
                    '{} is already on device {} at position {}. Remove one of them.'.format(here, *places[action]))
            home = device_of.setdefault(action.stage, device)
            if home != device:
                raise ValueError(
                    f'{here} belongs to stage {action.stage}, which device {home} runs. Move it there: a stage, with '
                    'its weights, is on one device.')
            places[action] = device, position
    return places


def _check_halves(written: Any, places: dict[Action, tuple[int, int]], name: str) -> None:
    for device, row in enumerate(written):
        for cell in row:
            half = Action(WEIGHT, cell.stage, cell.micro_batch)
            if cell.kind == _INPUTS and half not in places:
                raise ValueError(
                    f'Schedule {name!r}, device {device}: {cell} computes gradients by inputs alone, and no {half} '
                    f'computes those by weights. Add {half} to device {device}, or write '
                    f'{half._replace(kind=BACKWARD)}, which computes both.')


def _check_companions(written: Any, schedule: 'Schedule') -> None:
    """Refuse sends, receives and shards of a stage that is not on the device: the cell or the placement is wrong."""
    for device, row in enumerate(written):
        for cell in row:
            is_known = cell.stage < schedule.num_stages and (cell.micro_batch or 0) < schedule.num_micro_batches
            if not is_known or schedule.device_of(cell.stage) != device:
                raise ValueError(
                    f'Schedule {schedule.name!r}, device {device}: {cell} goes with no action there. It must name a '
                    f'stage of device {device} and one of {schedule.num_micro_batches} micro-batches. Correct it, or '
                    'leave it out: only actions count here.')


def _check_complete(places: dict[Action, tuple[int, int]], num_devices: int, name: str) -> tuple[int, int]:
    """Return the numbers of stages and micro-batches, after checking that none of their actions is missing."""
    if not places:
        raise ValueError(f'Schedule {name!r} has no actions. Give one row of actions for each device.')
    _check_stages(places, num_devices, name)
    num_stages = 1 + max(action.stage for action in places)
    num_micro_batches = 1 + max(action.micro_batch for action in places)
    devices = {action.stage: device for action, (device, _) in places.items()}
    for stage in range(num_stages):
        for kind in (FORWARD, BACKWARD):
            for micro_batch in range(num_micro_batches):
                action = Action(kind, stage, micro_batch)
                if action not in places:
                    raise ValueError(
                        f'Schedule {name!r} lacks {action}: device {devices[stage]}, which has stage {stage}, never '
                        f'runs it. Add {action} to device {devices[stage]}.')
    return num_stages, num_micro_batches


def _check_stages(places: dict[Action, tuple[int, int]], num_devices: int, name: str) -> None:
    stages = collections.defaultdict(set)
    for action, (device, _) in places.items():
        stages[device].add(action.stage)
    idle = set(range(num_devices)) - set(stages)
    if idle:
        raise ValueError(
            f'Schedule {name!r} has no action for device {min(idle)}. Leave out its row, or move a stage there.')
    num_stages = sum(map(len, stages.values()))
    absent = set(range(num_stages)) - set().union(*stages.values())
    if absent:
        raise ValueError(
            f'Schedule {name!r} has {num_stages} stages, but none with number {min(absent)}. Number the stages from 0 '
            'on, without a gap.')
