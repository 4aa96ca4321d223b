"""A step as blocks on rows, for pictures: of a step in memory, or of one in a trace file."""

import json
from typing import NamedTuple

from lingpipe.schedules.timeline import RECOMPUTE, StepTimes

UPDATE, WAIT, INPUT = 'U', '.', 'I'
COLOURS = {'F': '#7fb2e5', 'B': '#6cc08b', 'W': '#b9a3e3', RECOMPUTE: '#f4c266', UPDATE: '#9a9a9a', WAIT: '#eeeeee',
           INPUT: '#e58b8b'}
LEGEND = {'F': 'forward', 'B': 'backward', 'W': 'weight gradients', RECOMPUTE: 'recompute', UPDATE: 'update',
          WAIT: 'wait', INPUT: 'wait for input'}
_KINDS = {'forward': 'F', 'backward': 'B', 'weight gradients': 'W', 'recompute': RECOMPUTE, 'update': UPDATE,
          'input': INPUT}
_MICROSECONDS = 1e6


class Block(NamedTuple):
    """What a device did for some time.

    Attributes:
        row: index of its row.
        kind: kind of the action, or `UPDATE`, `WAIT` or `INPUT`.
        begin: seconds since the batch was requested.
        end: seconds since then.
        label: text inside it if it has room: the micro-batch, and before it the stage if a device has several.
    """

    row: int
    kind: str
    begin: float
    end: float
    label: str = ''


class Panel(NamedTuple):
    """A step, from the request for its batch.

    Attributes:
        rows: names of the rows, one per device, and 'input' if that was measured.
        blocks: list of `Block`s, those below others first.
        seconds: time to the end of the last update.
    """

    rows: list[str]
    blocks: list[Block]
    seconds: float

    @property
    def kinds(self) -> set[str]:
        """The kinds of its blocks."""
        return {block.kind for block in self.blocks}


def of_step(step: StepTimes, row_names: list[str]) -> Panel:
    """Returns the blocks of a step.

    Args:
        step: `StepTimes`.
        row_names: for each device the name of its row.
    """
    several = step.schedule.num_virtual_stages > 1
    blocks = [Block(span.device, span.action.kind, span.start - step.asked, span.end - step.asked,
                    _label(span.action.stage, span.action.micro_batch, several)) for span in step.spans]
    blocks += [Block(device, UPDATE, begin - step.asked, end - step.asked)
               for device, (begin, end) in enumerate(step.updates)]
    if step.input_wait:
        blocks.append(Block(len(row_names), INPUT, 0.0, step.input_seconds))
    return _panel([*row_names, *(['input'] if step.input_wait else [])], len(row_names), blocks, step.end - step.asked)


def of_trace_file(text: str) -> Panel:
    """Returns the blocks of the step with the median time in a file that `--mode=trace` wrote.

    Args:
        text: the content of `trace.json`.

    Raises:
        ValueError: it is not the content of such a file.
    """
    try:
        events = json.loads(text)['traceEvents']
        rows = {event['tid']: event['args']['name'] for event in events if event['name'] == 'thread_name'}
        numbers = sorted({event['args']['step'] for event in events if event['ph'] == 'X'})
        steps = [[event for event in events if event['ph'] == 'X' and event['args']['step'] == number]
                 for number in numbers]
        panels = sorted((_of_events(events, rows) for events in steps), key=lambda pair: pair[0])
        return panels[(len(panels) - 1) // 2][1]
    except (KeyError, TypeError, IndexError, ValueError) as error:
        raise ValueError(f'This is no trace of --mode=trace ({type(error).__name__}: {error}). Trace again.') from error


def _of_events(events, rows):
    """Returns the seconds of a step from its first action, and its `Panel`."""
    asked, end = (choose(moments) for choose, moments in zip((min, max), zip(*map(_moments, events))))
    start = min(event['ts'] for event in events if event['cat'] != 'input') / _MICROSECONDS
    stages = {(event['tid'], event['args']['partition']) for event in events if 'partition' in event['args']}
    several = len(stages) > len({row for row, _ in stages})
    blocks = [Block(event['tid'], _KINDS[event['cat']], *(moment - asked for moment in _moments(event)),
                    _label(event['args']['partition'], event['args']['micro_batch'], several)
                    if 'partition' in event['args'] else '') for event in events]
    names = [rows[row] for row in sorted(rows)]
    num_devices = len(rows) - any(event['cat'] == 'input' for event in events)
    return end - start, _panel(names, num_devices, blocks, end - asked)


def _moments(event):
    return event['ts'] / _MICROSECONDS, (event['ts'] + event['dur']) / _MICROSECONDS


def _panel(rows, num_devices, blocks, seconds):
    return Panel(rows, [*(Block(device, WAIT, 0.0, seconds) for device in range(num_devices)), *blocks], seconds)


def _label(stage, micro_batch, several):
    return f'{stage}·{micro_batch}' if several else str(micro_batch)
