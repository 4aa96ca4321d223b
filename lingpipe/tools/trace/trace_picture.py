"""A traced step as a picture, and as events for the trace viewer of Chrome."""

import io
import json

from PIL import Image, ImageDraw, ImageFont

from lingpipe.schedules.timeline import RECOMPUTE
from lingpipe.tools.trace import trace_blocks
from lingpipe.tools.trace.trace_blocks import COLOURS, LEGEND, WAIT

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
        """Fills a time on a row, with the label inside if it has room."""
        first, last = self.x(start), self.x(end)
        if last > first:
            self.draw.rectangle([first, top, last - 1, top + _ROW - 1], COLOURS[kind])
            self.draw.line([first, top, first, top + _ROW - 1], _EDGE)
            if label and self.small.getlength(label) + 3 <= last - first:
                self.draw.text(((first + last) / 2, top + _ROW / 2), label, _INK, self.small, anchor='mm')

    def text(self, x, y, text):
        self.draw.text((x, y), text, _INK, self.font, anchor='lm')


def png(panels: dict, row_names: list[str], width: int = 1200) -> bytes:
    """Draws steps below each other, all on one scale.

    Args:
        panels: dictionary from title to `StepTimes`.
        row_names: for each device the name of its row.
        width: pixels.

    Returns:
        Bytes of a PNG file.
    """
    font = ImageFont.load_default(_FONT_SIZE)
    left = 2 * _MARGIN + round(max(font.getlength(name) for name in row_names))
    drawn = {title: trace_blocks.of_step(step, row_names) for title, step in panels.items()}
    tops = [_MARGIN]
    for panel in drawn.values():
        tops.append(tops[-1] + _TITLE + len(panel.rows) * (_ROW + _GAP) + _GAP)
    height = tops[-1] + _TITLE + _MARGIN
    canvas = _Canvas(width, height, left, max(panel.seconds for panel in drawn.values()))
    for top, (title, panel) in zip(tops, drawn.items(), strict=False):
        _panel(canvas, top, title, panel)
    _legend(canvas, height - _MARGIN - _TITLE / 2, {WAIT}.union(*(panel.kinds for panel in drawn.values())))
    return _png_bytes(canvas.image)


def _panel(canvas, top, title, panel):
    canvas.text(_MARGIN, top + _TITLE / 2, f'{title}: {1000 * panel.seconds:.4g} ms')
    tops = [top + _TITLE + row * (_ROW + _GAP) for row in range(len(panel.rows))]
    for name, row in zip(panel.rows, tops):
        canvas.text(_MARGIN, row + _ROW / 2, name)
    for block in panel.blocks:
        canvas.block(block.kind, block.begin, block.end, tops[block.row], block.label)


def _legend(canvas, y, kinds):
    x = canvas.left
    for kind, name in LEGEND.items():
        if kind in kinds:
            canvas.draw.rectangle([x, y - 6, x + 12, y + 6], COLOURS[kind])
            canvas.text(x + 18, y, name)
            x += 18 + round(canvas.font.getlength(name)) + 2 * _MARGIN


def _png_bytes(image):
    """Returns the PNG with a palette, with which flat colours compress best."""
    file = io.BytesIO()
    image.quantize(64).save(file, 'PNG', optimize=True)
    return file.getvalue()


def trace_text(steps: list, row_names: list[str], first_step: int = 1) -> str:
    """Returns the text of a trace file.

    Each action is a complete event ('X'); its `args` hold `step`, `replica`, `partition` and `micro_batch`, which is
    counted in its replica. Times are microseconds since the first batch was requested.

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
