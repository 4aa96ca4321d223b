import dataclasses
import io

from PIL import Image

from lingpipe import schedules
from lingpipe.schedules import simulation
from lingpipe.tools.trace import trace_picture

FORWARD, BACKWARD, UPDATE, WAIT, INPUT = (
    (0x7f, 0xb2, 0xe5), (0x6c, 0xc0, 0x8b), (0x9a, 0x9a, 0x9a), (0xee, 0xee, 0xee), (0xe5, 0x8b, 0x8b))


def test_each_device_has_a_row_coloured_by_what_it_does():
    schedule = schedules.make_schedule('gpipe', 2, 1)
    step = simulation.replay(schedule, [dict.fromkeys(schedule.execution_order(), 1.0)], (0.0, 1.0))
    image = Image.open(io.BytesIO(trace_picture.png({'measured': step}, ['device 0', 'device 1']))).convert('RGB')
    rows = [colours_of_blocks(image, y) for y in range(image.height)]
    assert [FORWARD, WAIT, BACKWARD, UPDATE] in rows
    assert [WAIT, FORWARD, BACKWARD, WAIT, UPDATE] in rows


def test_replicas_have_rows_of_their_own():
    schedule = schedules.make_schedule('gpipe', 1, 1)
    order = list(schedule.execution_order())
    step = simulation.replay(schedule, [dict.fromkeys(order, 1.0), dict(zip(order, (1.0, 3.0)))], (0.0, 1.0))
    image = Image.open(io.BytesIO(trace_picture.png({'measured': step}, ['replica 0', 'replica 1']))).convert('RGB')
    rows = [colours_of_blocks(image, y) for y in range(image.height)]
    assert rows.index([FORWARD, BACKWARD, WAIT, UPDATE]) < rows.index([FORWARD, BACKWARD, UPDATE])


def test_the_wait_for_input_has_a_row_and_the_devices_wait_meanwhile():
    schedule = schedules.make_schedule('gpipe', 1, 1)
    step = simulation.replay(schedule, [dict.fromkeys(schedule.execution_order(), 1.0)], (0.0, 1.0))
    waited = dataclasses.replace(step, input_wait=(-1.0, 0.0))
    image = Image.open(io.BytesIO(trace_picture.png({'measured': waited, 'simulated': step}, ['device 0']))).convert('RGB')
    rows = [colours_of_blocks(image, y) for y in range(image.height)]
    order = [rows.index(row) for row in ([WAIT, FORWARD, BACKWARD, UPDATE], [INPUT], [FORWARD, BACKWARD, UPDATE])]
    assert order == sorted(order)


def colours_of_blocks(image, y):
    """Returns what a line of pixels runs through, without the white between blocks, and what is wider than a letter."""
    known, colours, widths = (FORWARD, BACKWARD, UPDATE, WAIT, INPUT), [], []
    for x in range(image.width):
        colour = image.getpixel((x, y))
        if colour in known and colours and colours[-1] == colour:
            widths[-1] += 1
        elif colour in known:
            colours.append(colour)
            widths.append(1)
    return [colour for colour, width in zip(colours, widths) if width > 20]


def test_a_picture_is_small_and_as_wide_as_asked():
    schedule = schedules.make_schedule('1f1b', 4, 16)
    step = simulation.replay(schedule, [dict.fromkeys(schedule.execution_order(), 1.0)])
    content = trace_picture.png(
        {'measured': step, 'simulated': step}, [f'device {index}' for index in range(4)], width=800)
    assert Image.open(io.BytesIO(content)).width == 800
    assert len(content) < 60_000
