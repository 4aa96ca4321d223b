"""Cells of other programs, and two whole files that torch.distributed.pipelining 2.13 wrote.

`_dump_csv` of its ScheduleZBVZeroBubble (with communication) and ScheduleDualPipeV (without), for two ranks with two
stages each and four micro-batches.
"""

import pathlib

import pytest

from lingpipe import schedules
from lingpipe.schedules import cells

FILES = pathlib.Path(__file__).parent / 'torch'


def spelled_as_pytorch_does(schedule):
    return [' '.join(f'{stage}{"I" if kind == "B" and schedule.is_split(action) else kind}{micro_batch}'
                     for action in row for kind, stage, micro_batch in [action])
            for row in schedule.device_actions]


@pytest.mark.parametrize('text, found', [
    ('F2', '7F2'), (' 1I0 ', '1I0'), ('0W10', '0W10'), ('3BW1', '3B1'), ('(0F1;1B2)OVERLAP_F_B', '0F1 1B2'),
    ('( 0F1 ; 1I2 )OVERLAP_F_B', '0F1 1I2'), ('10SEND_F3', '10SEND_F3'), ('1RECV_B0', '1RECV_B0'), ('0UNSHARD', '0UNSHARD'),
    ('4RESHARD', '4RESHARD'), ('0REDUCE_GRAD', '0REDUCE_GRAD'),
    *[(text, '') for text in ('X0', 'F', '0F', 'F-1', '0f1', 'SEND_F1', '0SEND_F', '0UNSHARD1', '0SEND_W1', '0F1;1B2',
                              '(0F1;1B2)', '(0F1;)OVERLAP_F_B', '()OVERLAP_F_B', '0F1 1B2')]])
def test_a_cell_is_read_or_means_nothing(text, found):
    assert ' '.join(map(str, cells.parse(text, device=7))) == found


def test_a_file_with_communication_is_the_order_of_its_actions():
    schedule = schedules.make_schedule(str(FILES / 'zbv_comms.csv'), num_devices=2, num_micro_batches=4)
    assert schedule.stage_devices == (0, 1, 1, 0)
    assert spelled_as_pytorch_does(schedule) == [
        '0F0 0F1 0F2 3F0 3I0 3W0 3F1 3I1 3W1 0F3 0I0 0W0 3F2 3I2 3W2 0I1 0W1 3F3 3I3 3W3 0I2 0W2 0I3 0W3',
        '1F0 2F0 1F1 2F1 2I0 2W0 1F2 1I0 1W0 2F2 2I1 2W1 1F3 1I1 1W1 2F3 2I2 2W2 1I2 2I3 1I3 1W2 2W3 1W3']


def test_a_file_with_overlap_runs_its_actions_one_after_the_other():
    schedule = schedules.make_schedule(str(FILES / 'dualpipev.csv'), num_devices=2, num_micro_batches=4)
    assert schedule.stage_devices == (0, 1, 1, 0)
    assert spelled_as_pytorch_does(schedule) == [
        '0F0 0F1 0F2 3F0 3I0 3W0 3F1 0F3 3B1 3F2 0B0 3B2 3F3 0B1 3B3 0I2 0W2 0I3 0W3',
        '1F0 2F0 1F1 2F1 1F2 2B0 2F2 1B0 1F3 2B1 2F3 1B1 2B2 1B2 2I3 1I3 2W3 1W3']


def test_sends_and_receives_do_not_change_the_order():
    """However they lie, or if some are missing: data dependencies alone rule."""
    plain = schedules.from_lists([['0F0', '0F1', '0B0', '0B1'], ['1F0', '1F1', '1B0', '1B1']])
    rows = [['0F0', '0F1', '0SEND_F1', '0RECV_B0', '0B0', '0B1', '0SEND_F0'],
            ['1F0', '1RECV_F0', '1F1', '1UNSHARD', '1B0', '1B1', '1SEND_B0', '1REDUCE_GRAD', '1RESHARD']]
    assert schedules.from_lists(rows) == plain


@pytest.mark.parametrize('cell', ['0SEND_F0', '2RECV_F0', '1RECV_F1', '0UNSHARD', '2REDUCE_GRAD'])
def test_what_accompanies_no_action_is_refused(cell):
    with pytest.raises(ValueError) as error:
        schedules.from_lists([['0F0', '0B0'], ['1F0', '1B0', cell]], name='mine')
    assert str(error.value) == (
        f"Schedule 'mine', device 1: {cell} goes with no action there. It must name a stage of device 1 and one of 1 "
        'micro-batches. Correct it, or leave it out: only actions count here.')


def test_a_file_with_communication_that_cannot_end_says_what_is_stuck(tmp_path):
    text = (FILES / 'zbv_comms.csv').read_text()
    path = tmp_path / 'stuck.csv'
    path.write_text(text.replace('2F0,2SEND_F0,', '').replace('2W3,', '2W3,2SEND_F0,2F0,'))
    with pytest.raises(ValueError, match=(
            r'stuck\.csv.* never ends: device 1 waits at position 3, 2B0, for 2F0, which device 1 runs at position 22\. '
            r'Move 2F0 ahead of 2B0 on device 1, for instance\.')):
        schedules.from_csv(path)
