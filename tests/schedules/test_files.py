import pathlib

import pytest

from lingpipe import schedules
from lingpipe.schedules.timeline import COMPUTE


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


@pytest.mark.parametrize('rows, message', [
    ([['F0', 'B0'], ['F0', 'X0']],
     "device 1: 'X0' is not an action. Write a stage (or leave it out, for stage 1), one of the letters"),
    ([['F0', 'B0', 'B0'], ['F0', 'B0']], '0B0 2 times, not once'),
    ([['F0', 'B0', 'F1'], ['F0', 'B0', 'F1', '0B1', 'B1']],
     'has stage 0 on the devices [0, 1]. Move all its actions to one,'),
    ([['F0', 'B0', 'F1'], ['F0', 'B0', 'F1', 'B1']],
     'has 0B1 0 times, not once. It has 2 stages and 2 micro-batches; correct its row'),
    ([['F0', 'B0', 'I0', 'W0']], '0B0 2 times, not once'), ([['F0', 'B0', 'W0', 'W0']], '0W0 2 times, not once'),
    ([['F0', 'W0', 'I0']], 'never ends: device 0 waits at position 1, 0W0, for 0B0. Move one of these actions ahead'),
    ([['F0', 'B0', 'F1', 'B1'], ['F0', 'F1', 'B1', 'B0']],
     'device 0 waits at position 1, 0B0, for 1B0; device 1 waits at position 1, 1F1, for 0F1.'),
    ([['0F0', '0B0', '1F0', '1B0'], []], 'has a row without actions. Leave it out, or move a stage there.'),
    ([['0F0', '0B0'], ['2F0', '2B0']], 'has 1F0 0 times'), ([['F999999999', 'B0']], 'has 0F0 0 times'),
    ([[], ['']], 'has a row without actions'), ([], 'has a row without actions')])
def test_an_impossible_order_is_refused_with_place_and_remedy(rows, message):
    found = refused(rows)
    assert found.startswith("Schedule 'mine'") and message in found


def test_an_order_says_itself_how_many_stages_each_device_has():
    """Three stages of equal cost on device 0, one on device 1: 2 units of F, B and W for two devices together."""
    rows = [['0F0', '2F0', '3F0', '3B0', '2B0', '0B0'], ['1F0', '1B0']]
    schedule = schedules.make_schedule(rows, num_devices=2, num_micro_batches=1)
    assert (schedule.num_devices, schedule.num_stages, schedule.num_virtual_stages) == (2, 4, 3)
    assert schedule.stage_devices == (0, 1, 0, 0)
    assert schedule.peak_memory() == (3 / 2, 1 / 2)
    assert schedule.simulate().busy(COMPUTE) == (3 * 3 / 2 + 3 / 2) / 2
    assert '2F0' in schedule.simulate().draw()
    with pytest.raises(ValueError, match=r'has \[3, 1\] stages on its devices, not num_virtual_stages=2 on each'):
        schedules.make_schedule(rows, 2, 1, 2)


def test_a_schedule_made_by_hand_that_lacks_an_action_says_which():
    action = schedules.Action
    schedule = schedules.Schedule('mine', 2, 1, ((action('F', 0, 0), action('B', 0, 0)), (action('F', 1, 0),)))
    with pytest.raises(ValueError, match='for 1B0. Move .*, or add it if no device has it.'):
        schedule.execution_order()


@pytest.mark.parametrize('sizes, message', [
    ((3, 1), "Schedule 'own' is for 2 devices, one per row, not for 3. Use 2 devices, or give an order for 3."),
    ((2, 4), "Schedule 'own' is for 1 micro-batches, not for 4. Set num_micro_batches=1, or give an order for 4."),
    ((2, 1, 2), "Schedule 'own' has [1, 1] stages on its devices, not num_virtual_stages=2 on each. Leave "
                'num_virtual_stages at 1: the order says itself where its stages are.'),
])
def test_an_order_for_other_sizes_is_refused(sizes, message):
    with pytest.raises(ValueError) as error:
        schedules.make_schedule([['F0', 'B0'], ['F0', 'B0']], *sizes)
    assert str(error.value) == message


@pytest.mark.parametrize('content, message', [
    (b'\xff\xfe', "'utf-8' codec can't decode"), (b'0F' + b'9' * 5000, 'is not an action')])
def test_a_file_that_is_no_table_is_refused(tmp_path, content, message):
    (tmp_path / 'own.csv').write_bytes(content)
    with pytest.raises(ValueError, match=message) as caught:
        schedules.from_csv(tmp_path / 'own.csv')
    assert len(str(caught.value)) < 1000


# Two whole files that torch.distributed.pipelining 2.13 wrote, by `_dump_csv` of its ScheduleZBVZeroBubble (with
# communication) and ScheduleDualPipeV (without), for two ranks with two stages each and four micro-batches.
FILES = pathlib.Path(__file__).parent / 'torch'


def spelled_as_pytorch_does(schedule):
    return [' '.join(f'{stage}{"I" if kind == "B" and schedule.is_split(action) else kind}{micro_batch}'
                     for action in row for kind, stage, micro_batch in [action])
            for row in schedule.device_actions]


@pytest.mark.parametrize('text', [
    'X0', 'F', '0F', 'F-1', '0f1', 'SEND_F1', '0SEND_F', '0UNSHARD1', '0SEND_W1', '0F1;1B2', '(0F1;1B2)', '0F1 1B2'])
def test_a_cell_that_is_no_action_is_refused(text):
    assert 'is not an action' in refused([['F0', 'B0', text]])


@pytest.mark.parametrize('name, rows', [
    ('zbv_comms', [  # with communication, which is left out
        '0F0 0F1 0F2 3F0 3I0 3W0 3F1 3I1 3W1 0F3 0I0 0W0 3F2 3I2 3W2 0I1 0W1 3F3 3I3 3W3 0I2 0W2 0I3 0W3',
        '1F0 2F0 1F1 2F1 2I0 2W0 1F2 1I0 1W0 2F2 2I1 2W1 1F3 1I1 1W1 2F3 2I2 2W2 1I2 2I3 1I3 1W2 2W3 1W3']),
    ('dualpipev', [  # with overlap: its actions run one after the other
        '0F0 0F1 0F2 3F0 3I0 3W0 3F1 0F3 3B1 3F2 0B0 3B2 3F3 0B1 3B3 0I2 0W2 0I3 0W3',
        '1F0 2F0 1F1 2F1 1F2 2B0 2F2 1B0 1F3 2B1 2F3 1B1 2B2 1B2 2I3 1I3 2W3 1W3'])])
def test_a_file_of_pytorch_is_the_order_of_its_actions(name, rows):
    schedule = schedules.make_schedule(str(FILES / f'{name}.csv'), num_devices=2, num_micro_batches=4)
    assert schedule.stage_devices == (0, 1, 1, 0)
    assert spelled_as_pytorch_does(schedule) == rows


def test_sends_and_receives_do_not_change_the_order():
    """However they lie, or if some are missing: data dependencies alone rule."""
    plain = schedules.from_lists([['0F0', '0F1', '0B0', '0B1'], ['1F0', '1F1', '1B0', '1B1']])
    rows = [['0F0', '0F1', '0SEND_F1', '0RECV_B0', '0B0', '0B1', '0SEND_F0'],
            ['1F0', '1RECV_F0', '1F1', '1UNSHARD', '1B0', '1B1', '1SEND_B0', '1REDUCE_GRAD', '1RESHARD']]
    assert schedules.from_lists(rows) == plain
