import io

import pytest
from PIL import Image

from lingpipe import drawing, schedules
from lingpipe.planner import plans
from tests.planner import stacks


def test_each_device_is_a_bar_of_its_memory_in_the_colours_of_its_kinds():
    found = plans.make_plan(stacks.setting(), schedules.make_schedule('gpipe', 2, 4), 'none')
    image = Image.open(io.BytesIO(drawing.png(plans.figure(found, 'title')))).convert('RGB')
    counts = {colour: count for count, colour in image.getcolors(2**16)}
    colours = {kind: tuple(bytes.fromhex(colour[1:])) for kind, (_, colour) in plans.LEGEND.items()}
    slots, weights = (counts[colours[kind]] for kind in ('slots', 'weights'))
    assert 1.8 < slots / weights < 2.2  # two slots a weight
    assert all(counts.get(colour) for colour in colours.values())


@pytest.mark.parametrize('text, expected', [
    ('16GiB', 2**34), ('8 gb', 8 * 10**9), ('1.5MiB', 3 * 2**19), ('16e9', 16 * 10**9), ('1024B', 1024),
    (16e9, 16 * 10**9), ('2B', 2)])
def test_sizes_are_read_as_people_write_them(text, expected):
    assert plans.to_bytes('device_memory', text) == expected


@pytest.mark.parametrize('text', ['much', '16 GiB of', '-3GB', '0GiB', '3 Gibi', '', '16', '1e400'])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(ValueError, match='device_memory=.* is not a memory size. Write it as 16GiB'):
        plans.to_bytes('device_memory', text)
