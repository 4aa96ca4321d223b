"""A measured run as a file in the Chrome trace event format, which Perfetto and chrome://tracing open."""

import json

from lingpipe.schedules.step_times import RECOMPUTE

_COLOURS = {'F': 'thread_state_running', 'B': 'rail_response', 'W': 'rail_animation', RECOMPUTE: 'thread_state_iowait'}
_NAMES = {'F': 'forward', 'B': 'backward', 'W': 'weight gradients', RECOMPUTE: 'recompute'}
_MICROSECONDS = 1e6


def trace_text(steps, row_names, first_step=1):
    """Returns the text of a trace file.

    Each action is a complete event ('X'); its `args` hold `step`, `replica`, `partition` and `micro_batch`, which is counted in
    its replica. Times are microseconds since the first batch was asked for.

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
    waits = [{**_complete('wait for input', row, *step.input_wait, steps[0].asked), 'cat': 'input', 'args': {'step': number}}
             for number, step in enumerate(steps, first_step)]
    return [_metadata('thread_name', row, 'input'), _metadata('thread_sort_index', row, row, 'sort_index'), *waits]


def _events(step, number, origin):
    events = [
        {**_complete(f'{span.action.kind}{span.action.micro_batch}', span.device, span.start, span.end, origin),
         'cat': _NAMES[span.action.kind], 'cname': _COLOURS[span.action.kind],
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
