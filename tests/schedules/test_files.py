import re

import hypothesis
import pytest
from hypothesis import strategies as st

from lingpipe import schedules


def refused(rows):
    with pytest.raises(ValueError) as error:
        schedules.from_lists(rows, name='mine')
    return str(error.value)


def test_lists_and_files_say_the_same_with_and_without_stages(tmp_path):
    path = tmp_path / 'mine.csv'
    path.write_text('F0,F1, B0,,B1\n1F0,1B0,,1F1,1B1\n\n')
    from_file = schedules.make_schedule(str(path), 2, 2)
    assert from_file.name == str(path)
    from_lists = schedules.make_schedule([['0F0', '0F1', '0B0', '0B1'], ['F0', 'B0', None, 'F1', 'B1']], 2, 2)
    assert from_lists.device_actions == from_file.device_actions == schedules.one_forward_one_backward(2, 2).device_actions


@pytest.mark.parametrize(
    'arguments', [('gpipe', 3, 4), ('1f1b', 1, 1), ('interleaved_1f1b', 2, 4, 3), ('zb_h1', 4, 12)])
def test_every_schedule_is_read_as_it_was_written(tmp_path, arguments):
    schedule = schedules.make_schedule(*arguments)
    schedule.to_csv(tmp_path / 'order.csv')
    read = schedules.make_schedule(str(tmp_path / 'order.csv'), *arguments[1:])
    assert read.device_actions == schedule.device_actions
    assert read.splits_backward == schedule.splits_backward
    assert read.num_stages == schedule.num_stages


def test_a_backward_pass_is_split_where_it_has_its_w():
    schedule = schedules.from_lists([['F0', 'F1', 'B0', 'W0', 'B1'], ['F0', 'I0', 'F1', 'B1', 'W0']])
    split = [str(action) for row in schedule.device_actions for action in row if schedule.is_split(action)]
    assert split == ['0B0', '0W0', '1B0', '1W0'] and schedule.splits_backward
    assert not schedule.forward_then_backward().splits_backward


def test_stages_may_lie_on_devices_in_any_way():
    """Down and up again: the placement of ZB-V (arXiv 2401.10241, section 6)."""
    schedule = schedules.from_lists([['0F0', '3F0', '3B0', '0B0'], ['1F0', '2F0', '2B0', '1B0']])
    assert [schedule.device_of(stage) for stage in range(4)] == [0, 1, 1, 0]
    assert schedule.simulate(schedules.StageCosts(1, 1, 1, transfer=1)).step_time == 4 * 3 + 4


@pytest.mark.parametrize('rows, message', [
    ([['F0', 'B0'], ['F0', 'X0']],
     "Schedule 'mine', device 1, position 1: 'X0' is no action. Write a stage (or leave it out, for stage 1), one of "
     "the letters 'F', 'B', 'I' and 'W', and a micro-batch, such as '1F0'."),
    ([['F0', 'F0', 'B0']],
     "Schedule 'mine', device 0, position 1: 0F0 is already on device 0 at position 0. Remove one of them."),
    ([['F0', 'B0'], ['F0', '0B1', 'B0']],
     "Schedule 'mine', device 1, position 1: 0B1 belongs to stage 0, which device 0 runs. Move it there: a stage, with "
     "its "
     'weights, is on one device.'),
    ([['F0', 'B0', 'F1'], ['F0', 'B0', 'F1', 'B1']],
     "Schedule 'mine' lacks 0B1: device 0, which has stage 0, never runs it. Add 0B1 to device 0."),
    ([['F0', 'I0'], ['F0', 'I0', 'W0']],
     "Schedule 'mine', device 0: 0I0 computes gradients by inputs alone, and no 0W0 computes those by "
     'weights. Add 0W0 to device 0, or write 0B0, which computes both.'),
    ([['F0', 'B0', 'I0', 'W0']],
     "Schedule 'mine', device 0, position 2: 0B0 is already on device 0 at position 1. Remove one of them."),
    ([['F0', 'W0', 'I0']],
     "Schedule 'mine' never ends: device 0 waits at position 1, 0W0, for 0B0, which device 0 runs at position 2. Move "
     '0B0 ahead of 0W0 on device 0, for instance.'),
    ([['0F0', '0B0', '1F0', '1B0'], []],
     "Schedule 'mine' has no action for device 1. Leave out its row, or move a stage there."),
    ([['0F0', '0B0'], ['2F0', '2B0']],
     "Schedule 'mine' has 2 stages, but none with number 1. Number the stages from 0 on, without a gap."),
    ([[], ['']], "Schedule 'mine' has no actions. Give one row of actions for each device."),
])
def test_an_impossible_order_is_refused_with_place_and_remedy(rows, message):
    assert refused(rows) == message


def test_an_order_says_itself_how_many_stages_each_device_has():
    """Three stages of equal cost on device 0, one on device 1: 2 units of F, B and W for two devices together."""
    rows = [['0F0', '2F0', '3F0', '3B0', '2B0', '0B0'], ['1F0', '1B0']]
    schedule = schedules.make_schedule(rows, num_devices=2, num_micro_batches=1)
    assert (schedule.num_devices, schedule.num_stages, schedule.num_virtual_stages) == (2, 4, 3)
    assert schedule.stage_devices == (0, 1, 0, 0)
    assert schedule.peak_memory() == (3 / 2, 1 / 2)
    assert schedule.simulate().busy_times == (3 * 3 / 2, 3 / 2)
    assert '2F0' in schedule.simulate().draw()
    with pytest.raises(ValueError, match=r'has \[3, 1\] stages on its devices, not num_virtual_stages=2 on each'):
        schedules.make_schedule(rows, 2, 1, 2)


def test_equal_numbers_of_stages_may_be_given_or_not():
    rows = [['0F0', '3F0', '3B0', '0B0'], ['1F0', '2F0', '2B0', '1B0']]
    assert schedules.make_schedule(rows, 2, 1) == schedules.make_schedule(rows, 2, 1, 2)


def test_devices_that_wait_for_each_other_in_a_circle_never_end():
    assert refused([['F0', 'B0', 'F1', 'B1'], ['F0', 'F1', 'B1', 'B0']]) == (
        "Schedule 'mine' never ends: device 0 waits at position 1, 0B0, for 1B0, which device 1 runs at position 3; "
        "device 1 "
        'waits at position 1, 1F1, for 0F1, which device 0 runs at position 2. Move 1B0 ahead of 1F1 on device 1, for '
        'instance.')


@hypothesis.given(
    st.sampled_from(['1f1b', 'zb_h1']), st.integers(1, 4), st.integers(1, 4), st.randoms(use_true_random=False))
def test_a_shuffled_order_ends_or_its_error_says_what_to_move(name, num_devices, num_micro_batches, random):
    rows = [random.sample(row, len(row))
            for row in schedules.make_schedule(name, num_devices, num_micro_batches).device_actions]
    try:
        assert len(schedules.from_lists(rows).execution_order()) == sum(map(len, rows))
    except ValueError as error:
        moved, waiting, device = re.search(r'Move (\S+) ahead of (\S+) on device (\d+), for instance',
                                           str(error)).groups()
        order = [str(action) for action in rows[int(device)]]
        assert order.index(moved) > order.index(waiting)


def test_a_schedule_made_by_hand_that_lacks_an_action_says_which():
    action = schedules.Action
    schedule = schedules.Schedule('mine', 2, 1, ((action('F', 0, 0), action('B', 0, 0)), (action('F', 1, 0),)))
    with pytest.raises(ValueError, match='for 1B0, which no device runs. Add 1B0 to the device of its stage.'):
        schedule.execution_order()


@pytest.mark.parametrize('sizes, message', [
    ((3, 1), "Schedule 'own' is for 2 devices, one a row, not for 3. Use 2 devices, or give an order for 3."),
    ((2, 4), "Schedule 'own' is for 1 micro-batches, not for 4. Set num_micro_batches=1, or give an order for 4."),
    ((2, 1, 2), "Schedule 'own' has [1, 1] stages on its devices, not num_virtual_stages=2 on each. Leave "
                'num_virtual_stages at 1: the order says itself where its stages are.'),
])
def test_an_order_for_other_sizes_is_refused(sizes, message):
    with pytest.raises(ValueError) as error:
        schedules.make_schedule([['F0', 'B0'], ['F0', 'B0']], *sizes)
    assert str(error.value) == message


def test_a_file_that_is_not_there_is_named():
    with pytest.raises(ValueError, match="schedule='nowhere.csv' cannot be read: .*No such file or directory.* Give "
                                         "the path"):
        schedules.make_schedule('nowhere.csv', 2, 2)


@pytest.mark.parametrize('content, message', [
    (b'\xff\xfe', "'utf-8' codec can't decode"),
    (b'"' + b'F0,' * 10**5, 'field larger than field limit'), (b'0F' + b'9' * 5000, 'is no action')])
def test_a_file_that_is_no_table_is_refused(tmp_path, content, message):
    (tmp_path / 'own.csv').write_bytes(content)
    with pytest.raises(ValueError, match=message) as caught:
        schedules.from_csv(tmp_path / 'own.csv')
    assert len(str(caught.value)) < 1000


def test_an_order_of_ones_own_cannot_have_the_name_of_a_schedule():
    with pytest.raises(ValueError, match="name='zb_v' is that of a schedule of LingPipe.*Choose another name"):
        schedules.from_lists([['0F0', '0B0']], name='zb_v')
