import io

import pytest
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


@pytest.mark.parametrize('text, expected', [
    ('16GiB', 2**34), ('8 gb', 8 * 10**9), ('1.5MiB', 3 * 2**19), ('16e9', 16 * 10**9), (1024, 1024),
    (16e9, 16 * 10**9), ('2B', 2)])
def test_sizes_are_read_as_people_write_them(text, expected):
    assert picture.to_bytes('device_memory', text) == expected


@pytest.mark.parametrize('text', ['much', '16 GiB of', '-3GB', '0GiB', '3 Gibi', ''])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(ValueError, match='device_memory=.* is no size of a memory. Write it as 16GiB'):
        picture.to_bytes('device_memory', text)


def test_sizes_are_shown_in_the_largest_unit_that_they_fill():
    assert [picture.to_text(size) for size in (512, 3 * 2**19, 2**34, 3 * 2**40)] == [
        '0.50 KiB', '1.50 MiB', '16.00 GiB', '3.00 TiB']


def planned(num_layers, limit, num_partitions=1, name='gpipe'):
    return plans.make_plan(
        stacks.setting(num_layers, memory_limit=limit), schedules.make_schedule(name, num_partitions, 4), 'stage')


def needed(num_layers, num_partitions=1, name='gpipe'):
    return max(planned(num_layers, None, num_partitions, name).device_bytes)


def test_the_largest_depth_is_the_last_that_fits_when_planned_itself():
    """The last layer, at which the loss is, stands apart."""
    found = picture.largest_depth(planned(8, needed(5)))
    assert (found.kind, found.num_now, found.largest) == ('Dense', 7, 4)
    assert picture.largest_depth(planned(8, needed(6) - 1)).largest == 4


def test_a_model_may_grow_and_shrink():
    assert picture.largest_depth(planned(3, needed(20))).largest == 19


def test_with_more_devices_more_layers_fit():
    limit = needed(12, 4, '1f1b')
    assert picture.largest_depth(planned(8, limit, 2, '1f1b'), num_devices=4).largest >= 11


def test_where_nothing_is_repeated_or_fits_there_is_no_depth():
    assert picture.largest_depth(planned(1, 10**9)) is None
    assert picture.largest_depth(planned(8, 100)) is None
