import pytest

from lingpipe import schedules

SIZES = [(1, 1), (1, 4), (2, 1), (3, 4), (4, 2), (5, 8)]


def text(schedule):
    return [' '.join(map(str, actions)) for actions in schedule.device_actions]


def all_schedules(num_devices, num_micro_batches):
    for name in sorted(schedules.SCHEDULES):
        if schedules.NUM_VIRTUAL_STAGES[name] == 1:
            yield schedules.make_schedule(name, num_devices, num_micro_batches)
    yield schedules.make_schedule('circular', num_devices, num_micro_batches, 2)
    if num_micro_batches % num_devices == 0:
        yield schedules.make_schedule('interleaved_1f1b', num_devices, num_micro_batches, 2)


def test_one_forward_one_backward_takes_turns_after_a_warm_up():
    """Megatron (arXiv 2104.04473), Figure 4 above, with three devices and four micro-batches."""
    assert text(schedules.one_forward_one_backward(3, 4)) == [
        '0F0 0F1 0F2 0B0 0F3 0B1 0B2 0B3', '1F0 1F1 1B0 1F2 1B1 1F3 1B2 1B3', '2F0 2B0 2F1 2B1 2F2 2B2 2F3 2B3']


def test_interleaving_takes_turns_on_the_stages_of_a_device_in_rounds():
    """Megatron, Figure 4 below: rounds of K micro-batches, 2 (K - 1 - i) + (V - 1) K forward actions of warm-up."""
    assert text(schedules.interleaved_1f1b(2, 4, 2)) == [
        '0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0 2F3 0B1 2B2 2B3 0B2 0B3',
        '1F0 1F1 3F0 3B0 3F1 3B1 1F2 1B0 1F3 1B1 3F2 3B2 3F3 3B3 1B2 1B3']


@pytest.mark.parametrize('num_devices, num_micro_batches, num_virtual_stages', [(4, 8, 2), (2, 2, 3), (3, 4, 2)])
def test_circular_has_the_published_bubble(num_devices, num_micro_batches, num_virtual_stages):
    """(K - 1) / (V M + K - 1); 3 / 19 for the first."""
    timeline = schedules.circular(num_devices, num_micro_batches, num_virtual_stages).simulate()
    idle = num_devices - 1
    assert timeline.bubble_fraction == pytest.approx(idle / (num_virtual_stages * num_micro_batches + idle))


@pytest.mark.parametrize('num_devices, num_micro_batches', SIZES)
def test_every_schedule_without_its_backward_actions_is_that_of_inference(num_devices, num_micro_batches):
    for schedule in all_schedules(num_devices, num_micro_batches):
        order = schedule.forward_only().execution_order()
        assert len(order) == schedule.num_stages * num_micro_batches
        if schedule.num_virtual_stages == 1:
            assert schedule.forward_only() == schedules.gpipe(num_devices, num_micro_batches).forward_only()


@pytest.mark.parametrize('num_devices, num_micro_batches', SIZES)
def test_with_the_loss_outside_every_schedule_becomes_gpipe(num_devices, num_micro_batches):
    for schedule in all_schedules(num_devices, num_micro_batches):
        outside = schedule.forward_then_backward()
        assert not outside.splits_backward
        kinds = [action.kind for action in outside.execution_order()]
        assert len(kinds) == 2 * schedule.num_stages * num_micro_batches
        for actions in outside.device_actions:
            assert [action.kind for action in actions] == sorted((action.kind for action in actions), reverse=True)
        if schedule.num_virtual_stages == 1:
            assert outside == schedules.gpipe(num_devices, num_micro_batches)


@pytest.mark.parametrize('make', [schedules.gpipe, schedules.one_forward_one_backward])
@pytest.mark.parametrize('num_micro_batches', range(1, 8))
def test_a_smaller_batch_runs_what_was_made_for_it(make, num_micro_batches):
    assert make(3, 8).for_num_micro_batches(num_micro_batches) == make(3, num_micro_batches)


@pytest.mark.parametrize('num_micro_batches', [0, 5])
def test_a_schedule_serves_no_larger_batch_and_no_empty_one(num_micro_batches):
    with pytest.raises(ValueError, match=f"'gpipe' is for 1 to 4 micro-batches, not {num_micro_batches}. Make one for"):
        schedules.gpipe(2, 4).for_num_micro_batches(num_micro_batches)


@pytest.mark.parametrize('arguments, message', [
    (('interleaved_1f1b', 4, 6, 2),
     "num_micro_batches=6 is not possible with schedule='interleaved_1f1b' over 4 devices: it must be a multiple of 4. "
     'Set num_micro_batches to 4 or 8.'),
    (('interleaved_1f1b', 4, 8), "Set num_virtual_stages=2, or schedule='1f1b'."),
    (('zb_h1', 4, 8, 2),
     "num_virtual_stages=2 does not go with schedule='zb_h1', which has 1 on each device. Set num_virtual_stages=1, or "
     "schedule='circular' or schedule='interleaved_1f1b' or schedule='v_half' or schedule='zb_v'."),
    (('1f1', 4, 8), "schedule='1f1' is unknown: it must be one of ['1f1b', 'circular', 'gpipe', 'interleaved_1f1b', "
     "'v_half', 'zb_h1', 'zb_v'], the path of a .csv file, or a list of each device's actions; did you mean 1f1b?"),
    (('gpipe', 0, 8), 'num_devices=0 is not possible: it must be an integer of 1 or more.'),
    (('gpipe', 2, 'auto'), "num_micro_batches='auto' is not possible"),
])
def test_conflicting_settings_are_refused_with_the_nearest_valid(arguments, message):
    with pytest.raises(ValueError) as error:
        schedules.make_schedule(*arguments)
    assert message in str(error.value)


@pytest.mark.parametrize('make, sizes', [
    (schedules.gpipe, (3, 4)), (schedules.one_forward_one_backward, (3, 4)), (schedules.interleaved_1f1b, (2, 4, 2)),
    (schedules.circular, (2, 3, 2)), (schedules.zb_h1, (3, 4))])
def test_the_drawing_of_a_docstring_is_that_of_the_schedule(make, sizes):
    drawn = [line.strip() for line in make.__doc__.splitlines() if line.strip().startswith('device ')]
    assert drawn == make(*sizes).simulate().draw().splitlines()
