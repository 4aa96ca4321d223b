import dataclasses
import io
import json

from PIL import Image

from lingpipe import drawing, schedules
from lingpipe.schedules import simulation
from lingpipe.tools import trace_picture

FORWARD, BACKWARD, UPDATE, WAIT, INPUT = (
    (0x7f, 0xb2, 0xe5), (0x6c, 0xc0, 0x8b), (0x9a, 0x9a, 0x9a), (0xee, 0xee, 0xee), (0xe5, 0x8b, 0x8b))


def test_the_wait_for_input_has_a_row_and_the_devices_wait_meanwhile():
    schedule = schedules.make_schedule('gpipe', 1, 1)
    step = simulation.replay(schedule, [dict.fromkeys(schedule.execution_order(), 1.0)], (0.0, 1.0))
    waited = dataclasses.replace(step, input_wait=(-1.0, 0.0))
    figure = trace_picture.figure({'measured': waited, 'simulated': step}, ['device 0'])
    image = Image.open(io.BytesIO(drawing.png(figure))).convert('RGB')
    rows = [colours_of_blocks(image, y) for y in range(image.height)]
    order = [rows.index(row) for row in ([WAIT, FORWARD, BACKWARD, UPDATE], [INPUT], [FORWARD, BACKWARD, UPDATE])]
    assert order == sorted(order)


def colours_of_blocks(image, y):
    """Return what a line of pixels runs through, without the white between blocks, and what is wider than a letter."""
    known, colours, widths = (FORWARD, BACKWARD, UPDATE, WAIT, INPUT), [], []
    for x in range(image.width):
        colour = image.getpixel((x, y))
        if colour in known and colours and colours[-1] == colour:
            widths[-1] += 1
        elif colour in known:
            colours.append(colour)
            widths.append(1)
    return [colour for colour, width in zip(colours, widths) if width > 20]


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
