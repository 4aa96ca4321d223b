import pytest

from lingpipe import schedules

COSTS = schedules.StageCosts


def test_whole_and_split_backward_passes_of_one_schedule_by_hand():
    """A whole B takes 2 + 3, a split one 2 and its W 3; what the B of micro-batch 0 leaves is kept to the end.

    ::

        device 0  F0F1B0--B1--------W0------
    """
    schedule = schedules.from_lists([['F0', 'F1', 'I0', 'B1', 'W0']])
    timeline = schedule.simulate(COSTS(forward=1, backward=2, weight_gradient=3))
    assert [(str(span.action), span.start, span.end) for span in timeline.spans] == [
        ('0F0', 0, 1), ('0F1', 1, 2), ('0B0', 2, 4), ('0B1', 4, 9), ('0W0', 9, 12)]
    assert schedule.peak_memory(1.0, 0.5) == (2.0,) and schedule.peak_memory(0.0, 0.5) == (0.5,)


def test_times_by_hand():
    """Two devices, two micro-batches, GPipe: device 1 is slower, sending takes 1; only before B0 is anything computed
    again.

    Device 0 does so while it waits for the gradients of micro-batch 0.
    """
    timeline = schedules.gpipe(2, 2).simulate([
        COSTS(forward=2, backward=3, weight_gradient=1, recompute=2, transfer=1, update=1),
        COSTS(forward=3, backward=3, weight_gradient=3, recompute=3, transfer=9, update=2)])
    assert [(device, str(action), start, end) for device, action, start, end in timeline.spans] == [
        (0, '0F0', 0, 2), (0, '0F1', 2, 4), (1, '1F0', 3, 6), (1, '1F1', 6, 9), (1, '1B1', 9, 15), (1, '1R0', 15, 18),
        (0, '0B1', 16, 20), (1, '1B0', 18, 24), (0, '0R0', 20, 22), (0, '0B0', 25, 29)]
    assert timeline.step_time == 31
    assert timeline.busy_times == (2 + 2 + 4 + 6 + 1, 3 + 3 + 6 + 9 + 2)


def test_backward_after_its_own_forward_recomputes_only_on_request():
    schedule, costs = schedules.one_forward_one_backward(1, 3), COSTS(1, 1, 1, recompute=1)
    assert schedule.simulate(costs).step_time == 3 * 3
    assert schedule.simulate(costs, recompute_after_own_forward=True).step_time == 3 * 4


@pytest.mark.parametrize('name, step_time, drawing', [
    ('gpipe', 14, ('F0F1F2......B2--R1B1--R0B0--',
                   '..F0F1F2B2--R1B1--R0B0--....')),
    ('1f1b', 13, ('F0F1R0..B0--F2R1B1--R2B2--',
                  '..F0B0--F1B1--F2B2--......'))])
def test_recomputation_does_not_wait_for_gradients(name, step_time, drawing):
    """By hand: F and R take 1, B takes 2; nothing is computed again where a B directly follows its own F."""
    timeline = schedules.make_schedule(name, 2, 3).simulate(COSTS(1, 1, 1, recompute=1))
    assert timeline.step_time == step_time
    assert [line.split('  ', 1)[1] for line in timeline.draw(num_columns=2 * step_time).splitlines()] == list(drawing)


def test_a_split_backward_pass_is_computed_again_before_its_first_half():
    timeline = schedules.zb_h1(2, 2).simulate(COSTS(1, 1, 1, recompute=1))
    assert timeline.draw(num_columns=16) == (
        'device 0  F0F1R0B0W0R1B1W1\n'
        'device 1  ..F0B0F1B1W0W1..')


def test_a_backward_pass_that_takes_no_time_is_not_waited_for():
    """Device 0 starts F1 before device 1 has computed what the B of micro-batch 0 would take.

    ::

        device 0  F0F1..........W0--........W1--
        device 1  ..F0----B0----F1----B1----W0----W1----
    """
    schedule = schedules.from_lists([['0F0', '0I0', '0F1', '0W0', '0I1', '0W1'],
                                     ['1F0', '1I0', '1F1', '1I1', '1W0', '1W1']])
    timeline = schedule.simulate([COSTS(1, 0, 2), COSTS(3, 3, 3)])
    starts = {str(span.action): span.start for span in timeline.spans}
    assert [starts[each] for each in ('0F1', '0W0', '0W1', '1F1', '1W1')] == [1, 7, 13, 7, 16]
    assert timeline.step_time == 19


def test_transfers_are_free_between_stages_of_one_device():
    costs = COSTS(transfer=5)
    assert schedules.interleaved_1f1b(1, 2, 3).simulate(costs).bubble_time == 0
    assert schedules.gpipe(2, 1).simulate(costs).step_time == 2 * 3 + 2 * 5


def test_costs_for_another_number_of_stages_are_refused():
    with pytest.raises(ValueError, match=r'costs has 2 entries, the schedule 4 stages on 2 devices. Give one'):
        schedules.interleaved_1f1b(2, 2, 2).simulate([COSTS()] * 2)


@pytest.mark.parametrize('value', [-1.0, float('nan'), float('inf')])
def test_a_cost_that_is_no_time_is_refused(value):
    with pytest.raises(ValueError, match=f'recompute={value} is no time: it must be a finite number of 0 or more.'):
        COSTS(recompute=value)


def test_a_drawing_names_actions_where_there_is_room_and_shows_updates():
    timeline = schedules.gpipe(2, 2).simulate(COSTS(update=2))
    assert timeline.draw() == (
        'device 0  F0F1......B1--B0--U---\n'
        'device 1  ..F0F1B1--B0--....U---')
    assert timeline.draw(num_columns=11) == (
        'device 0  FF...B1B0U-\n'
        'device 1  .FFB1B0..U-')
