import pytest

from lingpipe import schedules


def costs(num_devices, forward, backward, weight_gradient):
    return [schedules.StageCosts(forward, backward, weight_gradient).scaled(0.5)] * (2 * num_devices)


def bubble(schedule, num_devices, times):
    timed = costs(num_devices, *times)
    return schedules.for_costs(schedule, timed).simulate(timed).bubble_fraction


@pytest.mark.parametrize('num_devices, num_micro_batches, most', [(4, 8, 0.059), (8, 16, 0.068), (4, 16, 0.0304)])
def test_zb_v_waits_for_the_first_forward_pass_alone(num_devices, num_micro_batches, most):
    """(K - 1) / 2 forward passes, with the activations of no more micro-batches than 1F1B's, up to the end of W."""
    schedule = schedules.make_schedule('zb_v', num_devices, num_micro_batches, 2)
    timeline = schedule.simulate()
    assert timeline.idle == pytest.approx((num_devices - 1) / 2)
    assert timeline.bubble_fraction < most
    assert set(timeline.schedule.peak_memory()) <= {num_devices - 0.5, num_devices}
    assert max(schedule.peak_memory(1.0, 1.0)) <= num_devices


@pytest.mark.parametrize('num_devices, num_micro_batches, most, peak', [(4, 8, 0.0944, 3), (8, 16, 0.150, 5)])
def test_v_half_keeps_half_and_waits_half_of_1f1b(num_devices, num_micro_batches, most, peak):
    timeline = schedules.make_schedule('v_half', num_devices, num_micro_batches, 2).simulate()
    one_stage = schedules.make_schedule('1f1b', num_devices, num_micro_batches).simulate()
    assert timeline.bubble_fraction < most < 0.51 * one_stage.bubble_fraction
    assert max(timeline.schedule.peak_memory()) == peak == max(one_stage.schedule.peak_memory()) // 2 + 1
    assert max(timeline.schedule.peak_memory(1.0, 1.0)) <= peak + 2


@pytest.mark.parametrize('num_devices', [2, 3, 4, 6])
@pytest.mark.parametrize('times', [(1.0, 1.2, 0.8), (1.0, 2.0, 1.0), (1.0, 1.0, 0.5)])
def test_neither_loses_to_1f1b_at_other_times(num_devices, times):
    num_micro_batches = 2 * num_devices
    one_stage = schedules.make_schedule('1f1b', num_devices, num_micro_batches)
    least = one_stage.simulate(schedules.StageCosts(*times)).bubble_fraction
    for name in ('zb_v', 'v_half'):
        schedule = schedules.make_schedule(name, num_devices, num_micro_batches, 2)
        assert bubble(schedule, num_devices, times) < least


def test_the_order_follows_the_costs_of_the_stages():
    """A device of which the way down is heavy, and one of which the way up is."""
    uneven = [schedules.StageCosts(forward, forward, forward) for forward in (3, 1, 1, 3, 1, 1, 3, 1)]
    schedule = schedules.make_schedule('zb_v', 4, 8, 2)
    suited = schedules.for_costs(schedule, uneven)
    assert suited.simulate(uneven).seconds < schedule.simulate(uneven).seconds
    assert max(suited.peak_memory()) <= 4


def test_an_order_chosen_for_costs_is_chosen_again_for_others():
    """A plan first has the costs of an even cut, then those of its final one."""
    one_way, other_way = ([schedules.StageCosts(forward, forward, forward) for forward in times]
                          for times in ((3, 1, 1, 3, 1, 1, 3, 1), (1, 3, 1, 1, 3, 1, 1, 3)))
    schedule = schedules.make_schedule('zb_v', 4, 8, 2)
    twice = schedules.for_costs(schedules.for_costs(schedule, one_way), other_way)
    once = schedules.for_costs(schedule, other_way)
    assert twice.simulate(other_way).seconds <= once.simulate(other_way).seconds
