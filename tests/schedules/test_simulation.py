import pytest

from lingpipe import schedules
from lingpipe.schedules import simulation
from lingpipe.schedules.timeline import RECOMPUTE, Action, StepTimes

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
    assert timeline.seconds == 31
    assert timeline.updates == ((29, 30), (29, 31))
    assert timeline.idle == 29 - (2 + 2 + 4 + 6 + 3 + 3 + 6 + 9) / 2


@pytest.mark.parametrize('name, step_time, drawing', [
    ('gpipe', 14, ('F0F1F2......B2--R1B1--R0B0--',
                   '..F0F1F2B2--R1B1--R0B0--....')),
    ('1f1b', 13, ('F0F1R0..B0--F2R1B1--R2B2--',
                  '..F0B0--F1B1--F2B2--......'))])
def test_recomputation_does_not_wait_for_gradients(name, step_time, drawing):
    """By hand: F and R take 1, B takes 2; nothing is computed again where a B directly follows its own F."""
    timeline = schedules.make_schedule(name, 2, 3).simulate(COSTS(1, 1, 1, recompute=1))
    assert timeline.seconds == step_time
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
    assert timeline.seconds == 19


def test_transfers_are_free_between_stages_of_one_device():
    costs = COSTS(transfer=5)
    assert schedules.interleaved_1f1b(1, 2, 3).simulate(costs).idle == 0
    assert schedules.gpipe(2, 1).simulate(costs).seconds == 2 * 3 + 2 * 5


@pytest.mark.parametrize('value', [-1.0, float('nan'), float('inf')])
def test_a_cost_that_is_no_time_is_refused(value):
    with pytest.raises(ValueError, match=f'recompute={value} is not a valid duration: it must be a finite number of 0 or more.'):
        COSTS(recompute=value)


def test_a_drawing_names_actions_where_there_is_room_and_shows_updates():
    timeline = schedules.gpipe(2, 2).simulate(COSTS(update=2))
    assert timeline.draw() == (
        'device 0  F0F1......B1--B0--U---\n'
        'device 1  ..F0F1B1--B0--....U---')
    assert timeline.draw(num_columns=11) == (
        'device 0  FF...B1B0U-\n'
        'device 1  .FFB1B0..U-')


def durations_of(schedule, forward, backward):
    durations = {'F': forward, 'B': backward, 'W': 1.0}
    return {action: durations[action.kind] for action in schedule.execution_order()}


@pytest.mark.parametrize('name', ['gpipe', '1f1b', 'zb_h1'])
def test_without_recomputation_a_replay_is_the_simulation(name):
    schedule = schedules.make_schedule(name, 3, 5)
    backward = 1.0 if schedule.splits_backward else 2.0
    step, simulated = simulation.replay(schedule, [durations_of(schedule, 1.0, backward)]), schedule.simulate()
    assert {span.action: span[2:] for span in step.spans} == {span.action: span[2:] for span in simulated.spans}
    assert step.idle == pytest.approx(simulated.idle)


def test_replayed_recomputation_does_not_wait_for_gradients():
    # device 0  F R . . B B     The recomputation fills a part of the time in which device 0 waits for the B of device
    # 1.
    # device 1  . F B B . .
    schedule = schedules.make_schedule('gpipe', 2, 1)
    durations = durations_of(schedule, 1.0, 2.0)
    step = simulation.replay(schedule, [{**durations, Action(RECOMPUTE, 0, 0): 1.0}])
    times = {str(span.action): span[2:] for span in step.spans}
    assert times == {'0F0': (0, 1), '1F0': (1, 2), '0R0': (1, 2), '1B0': (2, 4), '0B0': (4, 6)}
    assert step.seconds == 6
    assert step.busy([RECOMPUTE]) == 0.5


def test_updates_begin_together_after_the_last_action():
    schedule = schedules.make_schedule('gpipe', 2, 1)
    step = simulation.replay(schedule, [durations_of(schedule, 1.0, 1.0)], update=(0.5, 2.0))
    assert step.updates == ((4.5, 6.5),) * 2
    assert (step.actions_end, step.end) == (4, 6.5)


def test_replicas_wait_for_each_other_before_the_updates_only():
    schedule = schedules.make_schedule('gpipe', 2, 1)
    fast, slow = durations_of(schedule, 1.0, 1.0), durations_of(schedule, 2.0, 2.0)
    step = simulation.replay(schedule, [fast, slow], update=(0.0, 1.0))
    ends = [max(span.end for span in step.spans if span.device == device) for device in range(4)]
    assert ends == [4, 3, 8, 6]
    assert step.updates == ((8, 9),) * 4
    assert step.durations == [fast, slow]
    assert step.idle == 8 - (2 + 2 + 4 + 4) / 4


# Device 0 works 1 + 2 seconds of 8, device 1 works 1 + 3; the update that follows is no part of the pipeline's phase.
_STEP = StepTimes(
    schedules.make_schedule('gpipe', 2, 1),
    (schedules.Span(0, schedules.Action('F', 0, 0), 10.0, 11.0), schedules.Span(
        1, schedules.Action('F', 1, 0), 11.5, 12.5),
     schedules.Span(1, schedules.Action('B', 1, 0), 12.5, 15.5),
     schedules.Span(0, schedules.Action('B', 0, 0), 16.0, 18.0)),
    ((18.0, 19.0), (18.0, 20.0)))


def test_bubble_fraction_is_what_devices_wait_of_the_time_of_the_actions():
    assert _STEP.bubble_fraction == pytest.approx(1 - (3 + 4) / (2 * 8))
