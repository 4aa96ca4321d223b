"""What plans take at achieved figures, beside the same schedule with costs worked out by hand."""

import dataclasses

import pytest

from lingpipe import schedules
from lingpipe.planner import accelerators, plans
from tests.planner import stacks

# Only starting kernels, sending and the update take time: a dense layer has 2 kernels forward and 3 backward.
ACHIEVED = accelerators.Achieved(
    matrix_efficiency=1.0, unaligned_efficiency=1.0, num_processors=1, memory_bandwidth=1e12, start=1e-3,
    link_bandwidth=1e6, sum_bandwidth=5e6, error=0.1)
ACCELERATOR = accelerators.Accelerator('x', 0, 1e18, 1e18, 1e12, 1e6, achieved=ACHIEVED)


def made(recompute='none', num_replicas=1):
    setting = dataclasses.replace(stacks.setting(accelerator=ACCELERATOR), num_replicas=num_replicas)
    return plans.make_plan(setting, schedules.make_schedule('1f1b', 2, 4), recompute, partition_by=[4, 8])


def expected(**costs):
    transfer = 8 * stacks.ROW / 1e6
    costs = schedules.StageCosts(transfer=transfer, weight_gradient=0.0, **costs)
    return schedules.make_schedule('1f1b', 2, 4).simulate(costs).step_time


@pytest.mark.parametrize('recompute, again', [('none', 0.0), ('stage', 8e-3)])
def test_a_step_takes_as_long_as_starting_kernels_and_sending(recompute, again):
    plan = made(recompute)
    assert plan.about_time == pytest.approx(expected(forward=8e-3, backward=4 * 3e-3, recompute=again), rel=1e-3)
    assert plan.step_time < plan.about_time


def test_sums_over_replicas_come_on_top():
    one, four = made().about_time, made(num_replicas=4).about_time
    assert four - one == pytest.approx(2 * 3 / 4 * 4 * stacks.WEIGHTS / 5e6)


def test_without_achieved_figures_nothing_is_said():
    plan = plans.make_plan(stacks.setting(), schedules.make_schedule('1f1b', 2, 4), 'none')
    assert plan.about_time is None


def test_figures_of_the_maker_are_the_least_whatever_was_achieved():
    known, unknown = made(), made()
    setting = dataclasses.replace(unknown.setting, accelerator=ACCELERATOR._replace(achieved=None))
    unknown = plans.make_plan(setting, unknown.schedule, 'none', partition_by=[4, 8])
    assert (known.step_time, known.ends, known.device_bytes) == (unknown.step_time, unknown.ends, unknown.device_bytes)
