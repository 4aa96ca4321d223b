import json
import time

import pytest

from lingpipe import schedules
from lingpipe.schedules import simulation
from lingpipe.tools.trace import trace_blocks, trace_picture


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


def read_back(*events):
    row = {'name': 'thread_name', 'ph': 'M', 'tid': 0, 'args': {'name': 'CPU:0'}}
    return trace_blocks.of_trace_file(json.dumps({'traceEvents': [row, *events]}))


def event(step=1, tid=0, ts=0.0, dur=1000.0, cat='forward', **arguments):
    arguments = {'step': step, 'partition': 0, 'micro_batch': 0, **arguments}
    return {'name': 'F0', 'ph': 'X', 'tid': tid, 'ts': ts, 'dur': dur, 'cat': cat, 'args': arguments}


def test_a_trace_file_reads_back_as_its_median_step():
    schedule = schedules.make_schedule('gpipe', 2, 2)
    steps = [simulation.replay(schedule, [dict.fromkeys(schedule.execution_order(), seconds)])
             for seconds in (0.002, 0.004, 0.003)]
    found = trace_blocks.of_trace_file(trace_picture.trace_text(steps, ['a', 'b']))
    wanted = trace_blocks.of_step(steps[2], ['a', 'b'])
    assert found.rows == wanted.rows and found.seconds == pytest.approx(wanted.seconds)
    assert sorted((block.row, block.kind, block.label, round(block.end, 6)) for block in found.blocks) == sorted(
        (block.row, block.kind, block.label, round(block.end, 6)) for block in wanted.blocks)


def test_a_trace_file_of_many_steps_is_read_in_time():
    begun = time.process_time()
    assert len(read_back(*(event(step=number) for number in range(50_000))).blocks) == 2
    assert time.process_time() - begun < 10  # a pass over all events for each step takes minutes


def test_a_step_of_many_micro_batches_is_drawn_in_time():
    schedule = schedules.make_schedule('gpipe', 1, 20_000)
    step = simulation.replay(schedule, [dict.fromkeys(schedule.execution_order(), 0.002)])
    begun = time.process_time()
    assert len(trace_blocks.of_step(step, ['a']).blocks) == 40_002
    assert time.process_time() - begun < 10  # to look at all spans for each of them takes minutes


@pytest.mark.parametrize('wrong', [
    event(tid=1), event(tid=-1), event(tid=0.5), event(ts='a' * 1000), event(ts=float('nan')), event(dur=float('inf')),
    event(dur=-1.0), event(dur=0.0), event(ts=1e300), event(ts=10**400), event(cat='no kind'), event(cat=[]),
    event(partition=[]), event(micro_batch='a'), event(step=[]), event(step=None), event(cat='input'), 3, None,
    {'name': 'thread_name', 'ph': 'M', 'tid': 2, 'args': {'name': 'CPU:2'}},
    {'name': 'thread_name', 'ph': 'M', 'tid': 1, 'args': {'name': ['CPU:1']}}])
def test_a_step_of_which_no_picture_can_be_drawn_is_refused(wrong):
    with pytest.raises(ValueError, match='This is no trace of --mode=trace .*Trace again.') as caught:
        read_back(wrong)
    assert len(str(caught.value)) < 400


def test_a_trace_file_that_nests_without_end_is_refused():
    with pytest.raises(ValueError, match='no trace of --mode=trace .ValueError: it is nested too deeply.'):
        trace_blocks.of_trace_file('[' * 100_000)
