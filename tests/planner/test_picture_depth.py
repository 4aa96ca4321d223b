from lingpipe import schedules
from lingpipe.planner import picture, plans
from tests.planner import stacks


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
