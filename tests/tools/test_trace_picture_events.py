import json

from lingpipe import schedules
from lingpipe.schedules import simulation
from lingpipe.tools.trace import trace_picture


def test_a_trace_file_has_the_documented_fields():
    schedule = schedules.make_schedule('zb_h1', 2, 2)
    durations = dict.fromkeys(schedule.execution_order(), 0.002)
    steps = [simulation.replay(schedule, [durations], (0.0, 0.001))] * 2
    trace = json.loads(trace_picture.trace_text(steps, ['CPU:0, partition 0', 'CPU:1, partition 1'], first_step=3))
    events = trace['traceEvents']
    names = {event['tid']: event['args']['name'] for event in events if event['name'] == 'thread_name'}
    assert names == {0: 'CPU:0, partition 0', 1: 'CPU:1, partition 1'}
    actions = [event for event in events if event['ph'] == 'X' and event['name'] != 'update']
    assert len(actions) == 2 * 2 * 6
    first = actions[0]
    assert (first['name'], first['tid'], first['ts'], first['dur'], first['cat']) == ('F0', 0, 0.0, 2000.0, 'forward')
    assert first['args'] == {'step': 3, 'replica': 0, 'partition': 0, 'micro_batch': 0}
    updates = [event for event in events if event['name'] == 'update']
    assert [(event['tid'], event['dur'], event['args']['step']) for event in updates] == [
        (0, 1000.0, 3), (1, 1000.0, 3), (0, 1000.0, 4), (1, 1000.0, 4)]
    assert all(event['ts'] >= 0 and event['dur'] >= 0 for event in events if event['ph'] == 'X')


def test_each_event_says_its_replica():
    schedule = schedules.make_schedule('gpipe', 2, 1)
    step = simulation.replay(schedule, [dict.fromkeys(schedule.execution_order(), 0.002)] * 3)
    events = [event for event in json.loads(trace_picture.trace_text([step], ['row'] * 6))['traceEvents']
              if event['ph'] == 'X']
    assert {(event['tid'], event['args']['replica']) for event in events} == {
        (device, device // 2) for device in range(6)}
