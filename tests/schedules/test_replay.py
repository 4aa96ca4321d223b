import pytest

from lingpipe import schedules
from lingpipe.schedules import simulation
from lingpipe.schedules.actions import Action
from lingpipe.schedules.timeline import RECOMPUTE


def durations_of(schedule, forward, backward):
    durations = {'F': forward, 'B': backward, 'W': 1.0}
    return {action: durations[action.kind] for action in schedule.execution_order()}


@pytest.mark.parametrize('name', ['gpipe', '1f1b', 'zb_h1'])
def test_without_recomputation_a_replay_is_the_simulation(name):
    schedule = schedules.make_schedule(name, 3, 5)
    backward = 1.0 if schedule.splits_backward else 2.0
    step, simulated = simulation.replay(schedule, [durations_of(schedule, 1.0, backward)]), schedule.simulate()
    assert {span.action: span[2:] for span in step.spans} == {span.action: span[2:] for span in simulated.spans}
    assert step.idle == pytest.approx(simulated.bubble_time)


def test_recomputation_does_not_wait_for_gradients():
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
    assert step.timeline.updates == (2.5, 2.5)


def test_an_action_without_duration_takes_no_time():
    schedule = schedules.make_schedule('zb_h1', 2, 2)
    durations = durations_of(schedule, 1.0, 1.0)
    del durations[Action('B', 0, 0)]
    assert {span.end - span.start for span in simulation.replay(schedule, [durations]).spans
            if span.action == ('B', 0, 0)} == {0}


def test_replicas_wait_for_each_other_before_the_updates_only():
    schedule = schedules.make_schedule('gpipe', 2, 1)
    fast, slow = durations_of(schedule, 1.0, 1.0), durations_of(schedule, 2.0, 2.0)
    step = simulation.replay(schedule, [fast, slow], update=(0.0, 1.0))
    ends = [max(span.end for span in step.spans if span.device == device) for device in range(4)]
    assert ends == [4, 3, 8, 6]
    assert step.updates == ((8, 9),) * 4
    assert step.durations == [fast, slow]
    assert step.idle == 8 - (2 + 2 + 4 + 4) / 4
    assert step.timeline.busy_times == (3, 3, 5, 5)
    assert len(step.timeline.draw().splitlines()) == 4
