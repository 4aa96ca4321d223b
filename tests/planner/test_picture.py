import io

from PIL import Image

from lingpipe import drawing, schedules
from lingpipe.planner import picture, plans
from tests.planner import stacks


def test_each_device_is_a_bar_of_its_memory_in_the_colours_of_its_kinds():
    found = plans.make_plan(stacks.setting(), schedules.make_schedule('gpipe', 2, 4), 'none')
    image = Image.open(io.BytesIO(drawing.png(picture.figure(found, 'title')))).convert('RGB')
    counts = {colour: count for count, colour in image.getcolors(2**16)}
    colours = {kind: tuple(bytes.fromhex(colour[1:])) for kind, (_, colour) in picture.LEGEND.items()}
    slots, weights = (counts[colours[kind]] for kind in ('slots', 'weights'))
    assert 1.8 < slots / weights < 2.2  # two slots a weight
    assert all(counts.get(colour) for colour in colours.values())
