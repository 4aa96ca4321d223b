"""A traced step as a picture, and as events for the trace viewer of Chrome."""

import io
import json
from typing import Any

from PIL import Image, ImageDraw, ImageFont

from lingpipe.schedules.timeline import RECOMPUTE

_UPDATE, _WAIT, _INPUT = 'U', '.', 'I'
_COLOURS = {'F': '#7fb2e5', 'B': '#6cc08b', 'W': '#b9a3e3', RECOMPUTE: '#f4c266', _UPDATE: '#9a9a9a', _WAIT: '#eeeeee',
            _INPUT: '#e58b8b'}
_LEGEND = {'F': 'forward', 'B': 'backward', 'W': 'weight gradients', RECOMPUTE: 'recompute', _UPDATE: 'update',
           _WAIT: 'wait', _INPUT: 'wait for input'}
_INK, _EDGE = '#202020', '#ffffff'
_MARGIN, _ROW, _GAP, _TITLE = 12, 26, 6, 24
_FONT_SIZE, _SMALL_FONT_SIZE = 13, 11
_COLOURS_OF_EVENTS = {
    'F': 'thread_state_running', 'B': 'rail_response', 'W': 'rail_animation', RECOMPUTE: 'thread_state_iowait'}
_NAMES = {'F': 'forward', 'B': 'backward', 'W': 'weight gradients', RECOMPUTE: 'recompute'}
_MICROSECONDS = 1e6


class _Canvas:
    """An image with two fonts, and the scale from seconds to pixels that all rows share."""

    def __init__(self, width, height, left, seconds):
        self.image = Image.new('RGB', (width, height), 'white')
        self.draw = ImageDraw.Draw(self.image)
        self.font, self.small = ImageFont.load_default(_FONT_SIZE), ImageFont.load_default(_SMALL_FONT_SIZE)
        self.left, self.right = left, width - _MARGIN
        self._pixels_per_second = (self.right - left) / seconds

    def x(self, seconds):
        """Returns the column of a moment, counted from the left end of the rows."""
        return self.left + round(seconds * self._pixels_per_second)

    def block(self, kind, start, end, top, label=''):
        """Fills a time on a row; the label stands in it where it has room."""
        first, last = self.x(start), self.x(end)
        if last > first:
            self.draw.rectangle([first, top, last - 1, top + _ROW - 1], _COLOURS[kind])
            self.draw.line([first, top, first, top + _ROW - 1], _EDGE)
            if label and self.small.getlength(label) + 3 <= last - first:
                self.draw.text(((first + last) / 2, top + _ROW / 2), label, _INK, self.small, anchor='mm')

    def text(self, x, y, text):
        self.draw.text((x, y), text, _INK, self.font, anchor='lm')


def png(panels: dict, row_names: Any, width: Any = 1200) -> Any:
    """Draws steps one beneath the other, all on one scale.

    Args:
        panels: dictionary from title to `StepTimes`.
        row_names: for each device the name of its row.
        width: pixels.

    Returns:
        Bytes of a PNG file.
    """
    font = ImageFont.load_default(_FONT_SIZE)
    left = 2 * _MARGIN + round(max(font.getlength(name) for name in row_names))
    tops = [_MARGIN]
    for step in panels.values():
        tops.append(tops[-1] + _TITLE + (len(row_names) + bool(step.input_wait)) * (_ROW + _GAP) + _GAP)
    height = tops[-1] + _TITLE + _MARGIN
    canvas = _Canvas(width, height, left, max(step.end - step.asked for step in panels.values()))
    for top, (title, step) in zip(tops, panels.items(), strict=False):
        _panel(canvas, top, title, step, row_names)
    first = next(iter(panels.values()))
    kinds = {span.action.kind for step in panels.values() for span in step.spans} | {_WAIT}
    kinds |= {kind for kind, has in ((_UPDATE, first.updates), (_INPUT, first.input_wait)) if has}
    _legend(canvas, height - _MARGIN - _TITLE / 2, kinds)
    return _png_bytes(canvas.image)


def _panel(canvas, top, title, step, row_names):
    canvas.text(_MARGIN, top + _TITLE / 2, f'{title}: {1000 * (step.end - step.asked):.4g} ms')
    names = [*row_names, 'input'] if step.input_wait else row_names
    tops = [top + _TITLE + device * (_ROW + _GAP) for device in range(len(names))]
    for name, row in zip(names, tops):
        canvas.text(_MARGIN, row + _ROW / 2, name)
    for row in tops[:len(row_names)]:
        canvas.block(_WAIT, 0, step.end - step.asked, row)
    for span in step.spans:
        canvas.block(
            span.action.kind, span.start - step.asked, span.end - step.asked, tops[span.device], _label(step, span))
    for row, (begin, end) in zip(tops, step.updates):
        canvas.block(_UPDATE, begin - step.asked, end - step.asked, row)
    if step.input_wait:
        canvas.block(_INPUT, 0, step.input_seconds, tops[-1])


def _label(step, span):
    """The micro-batch; with several stages on a device, the stage before it."""
    several = step.schedule.num_virtual_stages > 1
    return f'{span.action.stage}·{span.action.micro_batch}' if several else str(span.action.micro_batch)


def _legend(canvas, y, kinds):
    x = canvas.left
    for kind, name in _LEGEND.items():
        if kind in kinds:
            canvas.draw.rectangle([x, y - 6, x + 12, y + 6], _COLOURS[kind])
            canvas.text(x + 18, y, name)
            x += 18 + round(canvas.font.getlength(name)) + 2 * _MARGIN


def _png_bytes(image):
    """Flat colours compress best with a palette."""
    file = io.BytesIO()
    image.quantize(64).save(file, 'PNG', optimize=True)
    return file.getvalue()


def trace_text(steps: list, row_names: Any, first_step: int = 1) -> str:
    """Returns the text of a trace file.

    Each action is a complete event ('X'); its `args` hold `step`, `replica`, `partition` and `micro_batch`, which is
    counted in its replica. Times are microseconds since the first batch was asked for.

    Args:
        steps: list of measured `StepTimes`.
        row_names: for each device the name of its row.
        first_step: number of the first of these steps.
    """
    events = [_metadata('process_name', 0, 'LingPipe')]
    for device, name in enumerate(row_names):
        events += [_metadata('thread_name', device, name), _metadata('thread_sort_index', device, device, 'sort_index')]
    for number, step in enumerate(steps, first_step):
        events += _events(step, number, steps[0].asked)
    if any(step.input_wait for step in steps):
        events += _input_row(steps, len(row_names), first_step)
    lines = ',\n'.join(json.dumps(event) for event in events)
    return f'{{"displayTimeUnit": "ms", "traceEvents": [\n{lines}\n]}}\n'


def _metadata(what, device, value, key='name'):
    return {'name': what, 'ph': 'M', 'pid': 0, 'tid': device, 'args': {key: value}}


def _input_row(steps, row, first_step):
    waits = [{
        **_complete('wait for input', row, *step.input_wait, steps[0].asked), 'cat': 'input', 'args': {'step': number}}
             for number, step in enumerate(steps, first_step)]
    return [_metadata('thread_name', row, 'input'), _metadata('thread_sort_index', row, row, 'sort_index'), *waits]


def _events(step, number, origin):
    events = [
        {**_complete(f'{span.action.kind}{span.action.micro_batch}', span.device, span.start, span.end, origin),
         'cat': _NAMES[span.action.kind], 'cname': _COLOURS_OF_EVENTS[span.action.kind],
         'args': {'step': number, 'replica': step.replica_of(span.device), 'partition': span.action.stage,
                  'micro_batch': span.action.micro_batch}}
        for span in step.spans]
    updates = [
        {**_complete('update', device, begin, end, origin), 'cat': 'update',
         'args': {'step': number, 'replica': step.replica_of(device)}}
        for device, (begin, end) in enumerate(step.updates)]
    return events + updates


def _complete(name, device, begin, end, origin):
    return {'name': name, 'ph': 'X', 'pid': 0, 'tid': device, 'ts': round((begin - origin) * _MICROSECONDS, 1),
            'dur': round((end - begin) * _MICROSECONDS, 1)}
