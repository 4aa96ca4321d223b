"""Steps as a picture, and as events for the trace viewer of Chrome."""

import json
from collections.abc import Mapping

from lingpipe import drawing
from lingpipe.drawing import Block
from lingpipe.schedules.timeline import RECOMPUTE, StepTimes

_UPDATE, _WAIT, _INPUT = 'U', '.', 'I'
# Blocks are drawn in this order: 'wait' shows only where no other block covers it.
_LEGEND = {
    _WAIT: ('wait', '#eeeeee'), 'F': ('forward', '#7fb2e5'), 'B': ('backward', '#6cc08b'),
    'W': ('weight gradients', '#b9a3e3'), RECOMPUTE: ('recompute', '#f4c266'), _UPDATE: ('update', '#9a9a9a'),
    _INPUT: ('wait for input', '#e58b8b')}
_MICROSECONDS = 1e6


def figure(panels: Mapping[str, StepTimes], row_names: list[str]) -> drawing.Figure:
    """Draw the steps from top to bottom, with one row per device. `panels` maps each title to a step."""
    return drawing.rows([_rows(title, step, row_names) for title, step in panels.items()], _LEGEND, 'milliseconds')


def _rows(title, step, row_names):
    asked, several = step.asked, step.schedule.num_virtual_stages > 1

    def block(row, kind, begin, end, label=''):
        # A block is in milliseconds since the batch of the step was requested.
        return Block(row, kind, 1000 * (begin - asked), 1000 * (end - asked), label)

    def label(action):
        return f'{action.stage}·{action.micro_batch}' if several else str(action.micro_batch)

    end = step.end
    blocks = [block(device, _WAIT, asked, end) for device in range(len(row_names))]
    blocks += [block(span.device, span.action.kind, span.start, span.end, label(span.action)) for span in step.spans]
    blocks += [block(device, _UPDATE, *moments) for device, moments in enumerate(step.updates)]
    if not step.input_wait:
        return drawing.Rows(f'{title}: {1000 * (end - asked):.4g} ms', row_names, blocks)
    blocks.append(block(len(row_names), _INPUT, *step.input_wait))
    return drawing.Rows(f'{title}: {1000 * (end - asked):.4g} ms', [*row_names, 'input'], blocks)


def trace_text(steps: list[StepTimes], row_names: list[str]) -> str:
    """Return the text of a trace file, which ui.perfetto.dev displays.

    Times are in microseconds since the first batch was requested.
    """
    events = [_metadata('process_name', 0, 'LingPipe')]
    events += [_metadata('thread_name', device, name) for device, name in enumerate(row_names)]
    for number, step in enumerate(steps, 1):
        events += _events(step, number, steps[0].asked)
    if any(step.input_wait for step in steps):
        events.append(_metadata('thread_name', len(row_names), 'input'))
        events += [
            {**_complete('wait for input', len(row_names), *step.input_wait, steps[0].asked), 'cat': 'input',
             'args': {'step': number}} for number, step in enumerate(steps, 1)]
    lines = ',\n'.join(json.dumps(event) for event in events)
    return f'{{"displayTimeUnit": "ms", "traceEvents": [\n{lines}\n]}}\n'


def _metadata(what, row, name):
    return {'name': what, 'ph': 'M', 'pid': 0, 'tid': row, 'args': {'name': name}}


def _events(step, number, origin):
    for span in step.spans:
        action = span.action
        yield {
            **_complete(f'{action.kind}{action.micro_batch}', span.device, span.start, span.end, origin),
            'cat': _LEGEND[action.kind][0],
            'args': {'step': number, 'replica': step.replica_of(span.device), 'partition': action.stage,
                     'micro_batch': action.micro_batch}}  # each replica numbers its own micro-batches
    for device, (begin, end) in enumerate(step.updates):
        yield {**_complete('update', device, begin, end, origin), 'cat': 'update',
               'args': {'step': number, 'replica': step.replica_of(device)}}


def _complete(name, row, begin, end, origin):
    return {'name': name, 'ph': 'X', 'pid': 0, 'tid': row, 'ts': round((begin - origin) * _MICROSECONDS, 1),
            'dur': round((end - begin) * _MICROSECONDS, 1)}
