"""A plan for people: the memory of each device as a picture, and sizes as text."""

import itertools
import math
import re
from typing import Any

from lingpipe.planner import plans
from lingpipe.planner.plans import KINDS

LEGEND = {
    'weights': ('weights', '#7fb2e5'), 'slots': ('optimizer slots', '#b9a3e3'), 'gradients': ('gradients', '#6cc08b'),
    'boundary': ('boundary activations', '#e58f8f'), 'working': ('working activations', '#f4c266')}
_SHOWN_UNITS = {'TiB': 2**40, 'GiB': 2**30, 'MiB': 2**20, 'KiB': 2**10}
_UNITS = {'': 1, 'b': 1, **{f'{letter}b': 1000 ** power for power, letter in enumerate('kmgt', 1)},
          **{f'{letter}ib': 1024 ** power for power, letter in enumerate('kmgt', 1)}}
_LEAST_WITHOUT_UNIT = 2**20  # bytes; a smaller number lacks its unit, such as 16 for 16GiB


def to_bytes(field: str, size: int | str) -> int:
    """Return the number of bytes of a size such as '16GiB', '8 GB', '16e9' or 1024.

    Raises:
        ValueError: `size` is not a memory size; the message names `field`.
    """
    match = re.fullmatch(r'\s*(\d+(?:\.\d*)?(?:e\d+)?)\s*([a-z]*)\s*', str(size).lower())
    num_bytes = float(match[1]) * _UNITS[match[2]] if match and match[2] in _UNITS else 0
    if not (1 if match and match[2] else _LEAST_WITHOUT_UNIT) <= num_bytes < math.inf:
        raise ValueError(f'{field}={size!r} is not a memory size. Write it as 16GiB, 40GB or as a number of bytes, '
                         'as 16e9.')
    return round(num_bytes)


def to_text(num_bytes: float) -> str:
    """Return a number of bytes in its largest fitting unit from KiB to TiB, such as '1.50 GiB'."""
    unit = _unit(num_bytes)
    return f'{num_bytes / _SHOWN_UNITS[unit]:,.2f} {unit}'


def _unit(num_bytes):
    return next((unit for unit, size in _SHOWN_UNITS.items() if num_bytes >= size), 'KiB')


def figure(plan: plans.Plan, title: str) -> Any:
    """Draw the memory of each device by kind, and the limit, as a figure of `drawing`."""
    from lingpipe import drawing  # here, because matplotlib takes a while to import
    limit = plan.setting.memory_limit
    unit = _unit(max([*plan.device_bytes, limit or 0]))
    blocks = []
    for device, sizes in enumerate(zip(*map(plan.bytes_of, KINDS))):
        ends = [num_bytes / _SHOWN_UNITS[unit] for num_bytes in itertools.accumulate(sizes)]
        blocks += [drawing.Block(device, *block) for block in zip(KINDS, [0.0, *ends], ends)]
    names = [f'device {device}: {to_text(num_bytes)}' for device, num_bytes in enumerate(plan.device_bytes)]
    return drawing.rows([drawing.Rows(title, names, blocks)], LEGEND, unit, limit and limit / _SHOWN_UNITS[unit])
