import pytest

from lingpipe.pipeline import schedule as schedules

F, B = schedules.FORWARD, schedules.BACKWARD
SIZES = [(1, 1), (1, 4), (2, 1), (3, 4), (4, 2), (5, 8)]


def text(actions):
    return ' '.join(map(str, actions))


def run_lengths(schedule, costs=1):
    """Steps that a schedule takes when every action takes `costs`: a list-scheduling simulation of its own."""
    finish, free = {}, [0] * len(schedule.device_actions)
    for action in schedule.execution_order():
        kind, stage, m = action
        needs = [schedules.Action(F, stage - 1, m)] if kind == F else [
            schedules.Action(F, stage, m), schedules.Action(B, stage + 1, m)]
        start = max([free[stage], *[finish.get(need, 0) for need in needs]])
        finish[action] = free[stage] = start + costs
    return max(free)


def test_gpipe_runs_all_forward_then_all_backward_last_micro_batch_first():
    schedule = schedules.gpipe(num_stages=2, num_micro_batches=3)
    assert [text(actions) for actions in schedule.device_actions] == [
        'F0,0 F0,1 F0,2 B0,2 B0,1 B0,0', 'F1,0 F1,1 F1,2 B1,2 B1,1 B1,0']


def test_forward_only_has_no_backward_actions():
    schedule = schedules.forward_only(num_stages=2, num_micro_batches=2)
    assert [text(actions) for actions in schedule.device_actions] == ['F0,0 F0,1', 'F1,0 F1,1']
    assert not schedule.backwards()


@pytest.mark.parametrize('num_stages, num_micro_batches', SIZES)
def test_gpipe_takes_the_steps_of_the_paper(num_stages, num_micro_batches):
    """Each device idles for K - 1 of the M + K - 1 steps of a direction (GPipe, section 2.3)."""
    schedule = schedules.gpipe(num_stages, num_micro_batches)
    assert run_lengths(schedule) == 2 * (num_micro_batches + num_stages - 1)


@pytest.mark.parametrize('make', [schedules.gpipe, schedules.forward_only])
@pytest.mark.parametrize('num_stages, num_micro_batches', SIZES)
def test_execution_order_keeps_the_order_of_devices_and_of_data(make, num_stages, num_micro_batches):
    schedule = make(num_stages, num_micro_batches)
    order = schedule.execution_order()
    place = {action: index for index, action in enumerate(order)}
    assert len(place) == len(order) == sum(len(actions) for actions in schedule.device_actions)
    for actions in schedule.device_actions:
        assert sorted(actions, key=place.get) == list(actions)
    for kind, stage, m in order:
        if kind == F and stage > 0:
            assert place[F, stage - 1, m] < place[F, stage, m]
        if kind == B:
            assert place[F, stage, m] < place[B, stage, m]
            assert stage == num_stages - 1 or place[B, stage + 1, m] < place[B, stage, m]


@pytest.mark.parametrize('num_stages, num_micro_batches', SIZES)
def test_only_the_last_micro_batch_of_gpipe_goes_backward_right_after_its_forward(num_stages, num_micro_batches):
    schedule = schedules.gpipe(num_stages, num_micro_batches)
    assert schedule.backwards_after_own_forward() == {
        (B, stage, num_micro_batches - 1) for stage in range(num_stages)}
    assert len(schedule.backwards()) == num_stages * num_micro_batches


def test_a_schedule_that_never_ends_says_who_waits_for_what():
    action = schedules.Action
    schedule = schedules.Schedule('mine', 2, 1, (
        (action(B, 0, 0), action(F, 0, 0)), (action(F, 1, 0), action(B, 1, 0))))
    with pytest.raises(ValueError, match="'mine' never ends: device 0 waits at B0,0 for B1,0, F0,0; device 1 waits at F1,0"):
        schedule.execution_order()
