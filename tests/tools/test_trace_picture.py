import dataclasses
import json

from lingpipe import schedules
from lingpipe.schedules import simulation
from lingpipe.tools import trace_picture


def test_the_wait_for_input_has_a_row_and_the_devices_wait_meanwhile():
    schedule = schedules.make_schedule('gpipe', 1, 1)
    step = simulation.replay(schedule, [dict.fromkeys(schedule.execution_order(), 0.001)], (0.0, 0.001))
    waited = dataclasses.replace(step, input_wait=(-0.001, 0.0))
    measured, simulated = trace_picture.figure({'measured': waited, 'simulated': step}, ['device 0']).axes
    assert list(blocks(measured).items()) == [  # what is drawn later covers what is drawn first
        ('wait', (0, 0, 4)), ('forward', (0, 1, 2)), ('backward', (0, 2, 3)), ('update', (0, 3, 4)),
        ('wait for input', (1, 0, 1))]
    assert blocks(simulated) == {'wait': (0, 0, 3), 'forward': (0, 0, 1), 'backward': (0, 1, 2), 'update': (0, 2, 3)}


def blocks(axis):
    """Return {kind: (row, begin, end)} of what is drawn, of which there is one of each kind."""
    boxes = {found.get_label(): found.get_paths()[0].get_extents() for found in axis.collections}
    return {kind: (round((box.y0 + box.y1) / 2), round(box.x0, 6), round(box.x1, 6)) for kind, box in boxes.items()}


def test_a_trace_file_has_the_documented_fields():
    schedule = schedules.make_schedule('zb_h1', 2, 2)
    durations = dict.fromkeys(schedule.execution_order(), 0.002)
    steps = [simulation.replay(schedule, [durations], (0.0, 0.001))] * 2
    trace = json.loads(trace_picture.trace_text(steps, ['CPU:0, partition 0', 'CPU:1, partition 1']))
    events = trace['traceEvents']
    names = {event['tid']: event['args']['name'] for event in events if event['name'] == 'thread_name'}
    assert names == {0: 'CPU:0, partition 0', 1: 'CPU:1, partition 1'}
    actions = [event for event in events if event['ph'] == 'X' and event['name'] != 'update']
    assert len(actions) == 2 * 2 * 6
    first = actions[0]
    assert (first['name'], first['tid'], first['ts'], first['dur'], first['cat']) == ('F0', 0, 0.0, 2000.0, 'forward')
    assert first['args'] == {'step': 1, 'replica': 0, 'partition': 0, 'micro_batch': 0}
    updates = [event for event in events if event['name'] == 'update']
    assert [(event['tid'], event['dur'], event['args']['step']) for event in updates] == [
        (0, 1000.0, 1), (1, 1000.0, 1), (0, 1000.0, 2), (1, 1000.0, 2)]
    assert all(event['ts'] >= 0 and event['dur'] >= 0 for event in events if event['ph'] == 'X')
