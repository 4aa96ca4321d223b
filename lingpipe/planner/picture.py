"""A plan for people: the memory of each device as a picture, sizes in words, and how deep a model may be."""

import bisect
import io
import itertools
import re
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from lingpipe import schedules
from lingpipe.partition import layer_memory, memory_model
from lingpipe.planner import plans
from lingpipe.planner.plans import KINDS

COLOURS = {
    'weights': '#7fb2e5', 'slots': '#b9a3e3', 'gradients': '#6cc08b', 'boundary': '#e58f8f', 'working': '#f4c266'}
LEGEND = {'weights': 'weights', 'slots': 'optimizer slots', 'gradients': 'gradients',
          'boundary': 'boundary activations', 'working': 'working activations'}
_INK, _LIMIT = '#202020', '#c02020'
_MARGIN, _TITLE, _FONT_SIZE = 12, 24, 13
_LEAST_BAR, _MOST_BAR = 3, 48
_UNITS = {'': 1, 'b': 1, **{f'{letter}b': 1000 ** power for power, letter in enumerate('kmgt', 1)},
          **{f'{letter}ib': 1024 ** power for power, letter in enumerate('kmgt', 1)}}


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


def largest_depth(plan: plans.Plan, num_devices: int = 1) -> Depth | None:
    """Finds the largest model of the same kind that fits on some devices, with the other settings of a plan.

    The models of a family differ in how often layers are repeated: all runs of layers of equal sizes are made longer or
    shorter by the same factor.

    Args:
        plan: `Plan` with a memory limit.
        num_devices: K.

    Returns:
        `Depth`. None: no layer is repeated, or not even one of each repeated layer fits, or the schedule is a user's
        own or has several stages on a device.
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
    """Reads a size.

    Args:
        field: name of the field, for the message.
        size: number of bytes, or text such as '16GiB', '8 GB' or '16e9'.

    Returns:
        Number of bytes.

    Raises:
        ValueError: it is not a size.
    """
    match = re.fullmatch(r'\s*(\d+(?:\.\d*)?(?:e\d+)?)\s*([a-z]*)\s*', str(size).lower())
    if match is None or match[2] not in _UNITS or not float(match[1]):
        raise ValueError(f'{field}={size!r} is no size of a memory. Write it as 16GiB, 40GB or as a number of bytes, '
                         'as 16e9.')
    return round(float(match[1]) * _UNITS[match[2]])


def to_text(num_bytes: float) -> str:
    """Returns a size in its largest fitting unit from KiB to TiB, such as '1.50 GiB'.

    Args:
        num_bytes: number of bytes.
    """
    for unit, size in (('TiB', 2**40), ('GiB', 2**30), ('MiB', 2**20)):
        if num_bytes >= size:
            return f'{num_bytes / size:,.2f} {unit}'
    return f'{num_bytes / 1024:,.2f} KiB'


def png(plan: plans.Plan, title: str, width: int = 1200, height: int = 480) -> bytes:
    """Draws a plan.

    Args:
        plan: `Plan`.
        title: text above the picture.
        width: pixels.
        height: pixels.

    Returns:
        Bytes of a PNG file.
    """
    image = Image.new('RGB', (width, height), 'white')
    draw, font = ImageDraw.Draw(image), ImageFont.load_default(_FONT_SIZE)
    draw.text((_MARGIN, _MARGIN + _TITLE / 2), title, _INK, font, anchor='lm')
    limit = plan.setting.memory_limit
    largest = 1.1 * max([*plan.device_bytes, limit or 0])
    labels = {0.0: '0'} | {bytes_: to_text(bytes_) for bytes_ in (largest / 2.2, largest / 1.1)}
    left = 2 * _MARGIN + round(max(font.getlength(label) for label in labels.values()))
    top, bottom = _MARGIN + _TITLE, height - 2 * _TITLE - _MARGIN

    def y(num_bytes):
        return round(bottom - (bottom - top) * num_bytes / largest)

    for num_bytes, label in labels.items():
        draw.line([left, y(num_bytes), width - _MARGIN, y(num_bytes)], '#dddddd')
        draw.text((left - _MARGIN / 2, y(num_bytes)), label, _INK, font, anchor='rm')
    _bars(draw, font, plan, left, width - _MARGIN, y)
    if limit:
        draw.line([left, y(limit), width - _MARGIN, y(limit)], _LIMIT, 2)
        draw.text((width - _MARGIN, y(limit) - 9), f'limit {to_text(limit)}', _LIMIT, font, anchor='rm')
    _legend(draw, font, left, height - _MARGIN - _TITLE / 2)
    file = io.BytesIO()
    image.quantize(64).save(file, 'PNG', optimize=True)
    return file.getvalue()


def _bars(draw, font, plan, left, right, y):
    num_devices = plan.schedule.num_devices
    pitch = (right - left) / num_devices
    bar = max(_LEAST_BAR, min(_MOST_BAR, round(0.7 * pitch)))
    numbered = max(1, round(28 / pitch))
    for device in range(num_devices):
        centre = left + (device + 0.5) * pitch
        first, last, so_far = round(centre - bar / 2), round(centre + bar / 2), 0
        for kind, num_bytes in bytes_by_kind(plan, device):
            if y(so_far + num_bytes) < y(so_far):
                draw.rectangle([first, y(so_far + num_bytes), last - 1, y(so_far) - 1], COLOURS[kind])
            so_far += num_bytes
        if device % numbered == 0:
            draw.text((centre, y(0) + 12), str(device), _INK, font, anchor='mm')


def bytes_by_kind(plan: plans.Plan, device: int) -> Iterator[tuple[str, int]]:
    """Yields each of `KINDS` with its bytes on a device.

    Args:
        plan: `Plan`.
        device: index of the device.
    """
    parts = [part for stage, part in enumerate(plan.partitions) if plan.schedule.device_of(stage) == device]
    for kind in KINDS:
        yield kind, sum(getattr(part, kind) for part in parts)


def _legend(draw, font, x, y):
    for kind, name in LEGEND.items():
        draw.rectangle([x, y - 6, x + 12, y + 6], COLOURS[kind])
        draw.text((x + 18, y), name, _INK, font, anchor='lm')
        x += 18 + round(font.getlength(name)) + 2 * _MARGIN
