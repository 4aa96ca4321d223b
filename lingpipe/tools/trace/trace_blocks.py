"""A step as blocks on rows, for pictures: of a step in memory, or of one in a trace file."""

import collections
import operator
from typing import NamedTuple

from lingpipe import text_files
from lingpipe.schedules.timeline import RECOMPUTE, StepTimes

UPDATE, WAIT, INPUT = 'U', '.', 'I'
COLOURS = {'F': '#7fb2e5', 'B': '#6cc08b', 'W': '#b9a3e3', RECOMPUTE: '#f4c266', UPDATE: '#9a9a9a', WAIT: '#eeeeee',
           INPUT: '#e58b8b'}
LEGEND = {'F': 'forward', 'B': 'backward', 'W': 'weight gradients', RECOMPUTE: 'recompute', UPDATE: 'update',
          WAIT: 'wait', INPUT: 'wait for input'}
_KINDS = {'forward': 'F', 'backward': 'B', 'weight gradients': 'W', 'recompute': RECOMPUTE, 'update': UPDATE,
          'input': INPUT}
_MICROSECONDS = 1e6
_LEAST_SECONDS, _MOST_SECONDS = 1e-7, 1e9  # of a step: what the file can say, and thirty years
_NUM_SHOWN = 200


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
    asked = step.asked  # which looks at every span
    several = step.schedule.num_virtual_stages > 1
    blocks = [Block(span.device, span.action.kind, span.start - asked, span.end - asked,
                    _label(span.action.stage, span.action.micro_batch, several)) for span in step.spans]
    blocks += [Block(device, UPDATE, begin - asked, end - asked)
               for device, (begin, end) in enumerate(step.updates)]
    if step.input_wait:
        blocks.append(Block(len(row_names), INPUT, 0.0, step.input_seconds))
    return _panel([*row_names, *(['input'] if step.input_wait else [])], len(row_names), blocks, step.end - asked)


def of_trace_file(text: str) -> Panel:
    """Returns the blocks of the step with the median time in a file that `--mode=trace` wrote.

    Args:
        text: the content of `trace.json`.

    Raises:
        ValueError: it is not the content of such a file.
    """
    try:
        written = text_files.parsed_json(text)['traceEvents']
        rows = _row_names(written)
        steps = collections.defaultdict(list)
        for event in written:
            if event['ph'] == 'X':
                steps[operator.index(event['args']['step'])].append(_event(event, len(rows)))
        ordered = sorted((_seconds(events), number) for number, events in steps.items())
        return _of_events(steps[ordered[(len(ordered) - 1) // 2][1]], rows)
    except (KeyError, TypeError, IndexError, ValueError, OverflowError) as error:
        reason = f'{type(error).__name__}: {str(error)[:_NUM_SHOWN]}'
        raise ValueError(f'This is no trace of --mode=trace ({reason}). Trace again.') from error


class _Event(NamedTuple):
    """What a trace file says of a `Block`; the stage of an update and of a wait for input is None."""

    row: int
    kind: str
    begin: float
    end: float
    stage: int | None
    micro_batch: int


def _row_names(events):
    names = {event['tid']: event['args']['name'] for event in events if event['name'] == 'thread_name'}
    if sorted(names) != list(range(len(names))) or not all(type(name) is str for name in names.values()):
        raise ValueError('the rows are not numbered from 0, or a name is no text')
    return [names[row] for row in range(len(names))]


def _event(event, num_rows):
    """Returns an `_Event`, of which a picture can be drawn."""
    row, begin, seconds = operator.index(event['tid']), event['ts'] / _MICROSECONDS, event['dur'] / _MICROSECONDS
    if not 0 <= row < num_rows:
        raise ValueError(f'an event is in row {row} of {num_rows}')
    if not (abs(begin) < _MOST_SECONDS and 0 <= seconds < _MOST_SECONDS):
        raise ValueError(f'an event begins at {begin:g} s and takes {seconds:g} s')
    arguments = event['args']
    stage = operator.index(arguments['partition']) if 'partition' in arguments else None
    return _Event(row, _KINDS[event['cat']], begin, begin + seconds, stage,
                  0 if stage is None else operator.index(arguments['micro_batch']))


def _seconds(events):
    """Returns the seconds of a step from its first action."""
    return max(event.end for event in events) - min(event.begin for event in events if event.kind != INPUT)


def _of_events(events, rows):
    """Returns the `Panel` of a step."""
    asked = min(event.begin for event in events)
    seconds = max(event.end for event in events) - asked
    if seconds < _LEAST_SECONDS:
        raise ValueError(f'a step takes {seconds:g} s')
    stages = {(event.row, event.stage) for event in events if event.stage is not None}
    several = len(stages) > len({row for row, _ in stages})
    blocks = [Block(event.row, event.kind, event.begin - asked, event.end - asked,
                    '' if event.stage is None else _label(event.stage, event.micro_batch, several))
              for event in events]
    return _panel(rows, len(rows) - any(event.kind == INPUT for event in events), blocks, seconds)


def _panel(rows, num_devices, blocks, seconds):
    return Panel(rows, [*(Block(device, WAIT, 0.0, seconds) for device in range(num_devices)), *blocks], seconds)


def _label(stage, micro_batch, several):
    return f'{stage}·{micro_batch}' if several else str(micro_batch)
