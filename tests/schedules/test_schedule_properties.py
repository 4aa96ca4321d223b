"""What must hold for every schedule and every K, M, V."""

import hypothesis
import pytest
from hypothesis import strategies as st

from lingpipe import schedules

DEVICES, MICRO_BATCHES, VIRTUAL_STAGES = st.integers(1, 7), st.integers(1, 18), st.integers(2, 4)
COSTS = st.builds(
    schedules.StageCosts, *[st.floats(0.01, 10.0)] * 3, recompute=st.floats(0.0, 5.0), transfer=st.floats(0.0, 3.0),
    update=st.floats(0.0, 3.0))


@st.composite
def any_schedule(draw):
    """A schedule with a name, for any sizes that go with it, for a whole batch or a smaller one."""
    name, num_devices = draw(st.sampled_from(sorted(schedules.SCHEDULES))), draw(DEVICES)
    fixed = schedules.NUM_VIRTUAL_STAGES[name]
    if fixed is None:
        sizes = num_devices, num_devices * draw(st.integers(1, 4)), draw(VIRTUAL_STAGES)
    else:
        sizes = (num_devices + 1) // fixed, draw(MICRO_BATCHES), fixed
    schedule = schedules.make_schedule(name, *sizes)
    return schedule.for_num_micro_batches(draw(st.integers(1, schedule.num_micro_batches)))


@hypothesis.settings(deadline=None)
@hypothesis.given(any_schedule())
def test_each_action_is_there_once_on_the_device_of_its_stage(schedule):
    kinds = 'FBW' if schedule.splits_backward else 'FB'
    expected = {(kind, stage, micro_batch) for kind in kinds for stage in range(schedule.num_stages)
                for micro_batch in range(schedule.num_micro_batches)}
    actions = [action for row in schedule.device_actions for action in row]
    assert len(actions) == len(expected) and set(actions) == expected
    for device, row in enumerate(schedule.device_actions):
        in_a_loop = {device + schedule.num_devices * chunk for chunk in range(schedule.num_virtual_stages)}
        own = {device, schedule.num_stages - 1 - device} if schedule.name in ('zb_v', 'v_half') else in_a_loop
        assert {action.stage for action in row} == own
        assert all(schedule.device_of(action.stage) == device for action in row)


@hypothesis.settings(deadline=None)
@hypothesis.given(any_schedule())
def test_it_ends_and_keeps_the_order_of_devices_and_of_data(schedule):
    order = schedule.execution_order()
    place = {action: index for index, action in enumerate(order)}
    assert len(place) == len(order) == sum(map(len, schedule.device_actions))
    for row in schedule.device_actions:
        assert sorted(row, key=place.get) == list(row)
    last = schedule.num_stages - 1
    for kind, stage, m in order:
        if kind == 'F':
            assert stage == 0 or place['F', stage - 1, m] < place['F', stage, m]
        if kind == 'B':
            assert place['F', stage, m] < place['B', stage, m]
            assert stage == last or place['B', stage + 1, m] < place['B', stage, m]
        if kind == 'W':
            assert place['B', stage, m] < place['W', stage, m]


@hypothesis.settings(deadline=None)
@hypothesis.given(any_schedule(), st.data())
def test_timelines_respect_dependencies_and_lower_bounds(schedule, data):
    """A step takes at least the work of each device, and the path of one micro-batch through all stages."""
    costs = data.draw(st.lists(COSTS, min_size=schedule.num_stages, max_size=schedule.num_stages))
    timeline = schedule.simulate(costs)
    span = {span.action: span for span in timeline.spans}
    for row in schedule.device_actions:
        for earlier, later in zip(row, row[1:]):
            assert span[later].start >= span[earlier].end
    for (kind, stage, m), (_, _, start, _) in span.items():
        if kind == 'F' and stage:
            assert start >= span['F', stage - 1, m].end
        if kind == 'B' and stage < schedule.num_stages - 1:
            assert start >= span['B', stage + 1, m].end
        if kind == 'R':
            assert span['F', stage, m].end <= start and span['R', stage, m].end <= span['B', stage, m].start
    work = [schedule.num_micro_batches * sum(
        cost.forward + cost.backward + cost.weight_gradient for stage, cost in enumerate(costs)
        if schedule.device_of(stage) == device) for device in range(schedule.num_devices)]
    distance = sum(cost.forward + cost.backward for cost in costs)
    distance += 2 * sum(cost.transfer for stage, cost in enumerate(costs[:-1])
                        if schedule.device_of(stage) != schedule.device_of(stage + 1))
    assert timeline.seconds >= max(*work, distance) * (1 - 1e-9)
    assert 0 <= timeline.bubble_fraction < 1


@hypothesis.settings(deadline=None)
@hypothesis.given(DEVICES, MICRO_BATCHES)
def test_gpipe_keeps_every_micro_batch(num_devices, num_micro_batches):
    """GPipe without recomputation (arXiv 1811.06965, section 2.3)."""
    assert schedules.gpipe(num_devices, num_micro_batches).peak_memory() == (num_micro_batches,) * num_devices


@hypothesis.settings(deadline=None)
@hypothesis.given(DEVICES, MICRO_BATCHES)
def test_1f1b_and_zb_h1_keep_a_micro_batch_per_device_from_here_on(num_devices, num_micro_batches):
    """Megatron, section 2.2.1; Zero Bubble, section 2.1: what a B leaves for W is counted by itself."""
    expected = tuple(min(num_devices - device, num_micro_batches) for device in range(num_devices))
    assert schedules.one_forward_one_backward(num_devices, num_micro_batches).peak_memory() == expected
    split = schedules.zb_h1(num_devices, num_micro_batches)
    assert split.peak_memory() == expected
    assert split.peak_memory(0.0, 1.0) == tuple(
        min(device + 1, num_micro_batches) for device in range(num_devices))


@hypothesis.settings(deadline=None)
@hypothesis.given(DEVICES, st.integers(1, 4), VIRTUAL_STAGES)
def test_interleaving_keeps_what_its_warm_up_needs(num_devices, num_rounds, num_virtual_stages):
    """Megatron, section 2.2.2: 2 (K - 1 - i) + (V - 1) K forward actions of warm-up, and one more at work."""
    num_micro_batches = num_rounds * num_devices
    peaks = schedules.interleaved_1f1b(num_devices, num_micro_batches, num_virtual_stages).peak_memory()
    assert peaks == pytest.approx([
        min(2 * (num_devices - 1 - device) + (num_virtual_stages - 1) * num_devices + 1,
            num_virtual_stages * num_micro_batches) / num_virtual_stages for device in range(num_devices)])


@hypothesis.settings(deadline=None)
@hypothesis.given(any_schedule())
def test_a_smaller_batch_holds_no_more(schedule):
    smaller = schedule.for_num_micro_batches((schedule.num_micro_batches + 1) // 2)
    for sizes in [(1.0, 0.0), (0.0, 1.0), (1.0, 0.5)]:
        assert all(less <= more for less, more in zip(smaller.peak_memory(*sizes), schedule.peak_memory(*sizes)))


@hypothesis.settings(deadline=None)
@hypothesis.given(DEVICES, MICRO_BATCHES, VIRTUAL_STAGES)
def test_zb_h1_and_interleaving_wait_less_than_1f1b_and_gpipe(
        num_devices, num_micro_batches, num_virtual_stages):
    """At equal costs 1f1b waits as long as gpipe."""
    sizes = num_devices, num_micro_batches
    gpipe = schedules.gpipe(*sizes).simulate().idle
    turns = schedules.one_forward_one_backward(*sizes).simulate().idle
    assert turns == gpipe == 3 * (num_devices - 1)
    assert schedules.zb_h1(*sizes).simulate().idle == num_devices - 1 + max(num_devices - num_micro_batches, 0)
    rounds = -(-num_micro_batches // num_devices)
    interleaved = schedules.interleaved_1f1b(num_devices, rounds * num_devices, num_virtual_stages)
    assert interleaved.simulate().idle == pytest.approx(3 * (num_devices - 1) / num_virtual_stages)
    assert interleaved.for_num_micro_batches(num_micro_batches).simulate().idle <= turns + 1e-9


@hypothesis.settings(deadline=None)
@hypothesis.given(st.integers(2, 7), st.integers(0, 8), *[st.integers(1, 8)] * 3)
def test_zb_h1_waits_what_the_paper_says(num_devices, more, forward, backward, weight_gradient):
    """(p - 1)(T_F + T_B - T_W) (Zero Bubble, section 2.3), where W is the shortest; a longer W only fills what is
    there."""
    costs = schedules.StageCosts(forward, backward, weight_gradient)
    timeline = schedules.zb_h1(num_devices, num_devices + more).simulate(costs)
    assert timeline.idle == pytest.approx(
        (num_devices - 1) * (forward + backward - min(forward, backward, weight_gradient)))
