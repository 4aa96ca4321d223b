import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest

from lingpipe import schedules
from lingpipe.partition import accelerators, layer_memory, memory_model
from lingpipe.partition.layer_profile import LayerTime
from lingpipe.planner import plans
from tests.planner import stacks


def made(name='gpipe', num_partitions=2, num_micro_batches=4, recompute='none', **kwargs):
    return plans.make_plan(
        stacks.setting(**kwargs), schedules.make_schedule(name, num_partitions, num_micro_batches), recompute)


def test_weights_slots_and_gradients_are_reported_by_partition():
    first, second = made(num_slots=1).partitions
    for part in (first, second):
        assert len(part.layer_names) == 4 and part.num_parameters == stacks.WEIGHTS
        assert (part.weights, part.slots, part.gradients) == (4 * stacks.WEIGHTS,) * 3


@pytest.mark.parametrize('recompute', ['none', 'stage', 'layer'])
def test_totals_are_what_the_cut_estimates(recompute):
    found = made(recompute=recompute)
    memories, live = found.setting.stack.memories(8), layer_memory.live_micro_batches(found.schedule)
    estimate = memory_model.MemoryModel(memories, live, recompute, 2)
    np.testing.assert_array_equal(
        [part.total for part in found.partitions],
        estimate(np.arange(2), np.array([0, *found.ends[:-1]]), np.array(found.ends)))


def test_bubble_and_speedup_are_those_of_equal_stages_without_transfers():
    ideal = accelerators.Accelerator('ideal', 0, 1e9, 1e9, 1e18, 1e18)
    found = made(accelerator=ideal)
    assert found.timeline.bubble_fraction == pytest.approx(1 / (4 + 1))  # GPipe, section 2.3: (K - 1) / (M + K - 1)
    assert found.speedup == pytest.approx(2 * 4 / 5)
    operations = 3 * stacks.BATCH * 8 * (2 * stacks.WIDTH * stacks.WIDTH + stacks.WIDTH)
    assert found.step_time == pytest.approx(operations / 2 / 1e9 / (4 / 5))
    assert found.throughput == pytest.approx(stacks.BATCH / found.step_time)


def test_a_plan_fits_where_the_fullest_device_does():
    needed = max(made().device_bytes)
    assert made(memory_limit=needed).fits
    assert not made(memory_limit=needed - 1).fits
    assert made().fits


def test_where_the_best_cut_does_not_fit_the_best_that_fits_is_taken():
    """1F1B's last partition recomputes nothing, so that it gets most layers, and needs most memory."""
    free = made('1f1b', recompute='stage')
    assert free.ends == [3, 8]
    limited = made('1f1b', recompute='stage', memory_limit=max(free.device_bytes) - 1)
    assert limited.ends == [4, 8] and limited.is_cut_by_memory and limited.fits


def test_bytes_of_a_device_are_those_of_all_its_stages():
    found = plans.make_plan(stacks.setting(), schedules.make_schedule('interleaved_1f1b', 2, 4, 2), 'none')
    assert len(found.partitions) == 4
    assert found.device_bytes == [sum(part.total for part in found.partitions[device::2]) for device in (0, 1)]


# Only starting kernels, sending and the update take time: a dense layer has 2 kernels forward and 3 backward.
ACHIEVED = accelerators.Achieved(
    matrix_efficiency=1.0, unaligned_efficiency=1.0, num_processors=1, memory_bandwidth=1e12, start=1e-3,
    link_bandwidth=1e6, sum_bandwidth=5e6, error=0.1)
ACCELERATOR = accelerators.Accelerator('x', 0, 1e18, 1e18, 1e12, 1e6, achieved=ACHIEVED)


def achieved_plan(recompute='none', num_replicas=1):
    setting = dataclasses.replace(stacks.setting(accelerator=ACCELERATOR), num_replicas=num_replicas)
    return plans.make_plan(setting, schedules.make_schedule('1f1b', 2, 4), recompute, partition_by=[4, 8])


def expected(**costs):
    transfer = 8 * stacks.ROW / 1e6
    costs = schedules.StageCosts(transfer=transfer, weight_gradient=0.0, **costs)
    return schedules.make_schedule('1f1b', 2, 4).simulate(costs).seconds


@pytest.mark.parametrize('recompute, again', [('none', 0.0), ('stage', 8e-3)])
def test_a_step_takes_as_long_as_starting_kernels_and_sending(recompute, again):
    plan = achieved_plan(recompute)
    assert plan.about_time == pytest.approx(expected(forward=8e-3, backward=4 * 3e-3, recompute=again), rel=1e-3)
    assert plan.step_time < plan.about_time


def test_sums_over_replicas_come_on_top():
    one, four = achieved_plan().about_time, achieved_plan(num_replicas=4).about_time
    assert four - one == pytest.approx(2 * 3 / 4 * 4 * stacks.WEIGHTS / 5e6)


def test_figures_of_the_maker_are_the_least_whatever_was_achieved():
    known, unknown = achieved_plan(), achieved_plan()
    setting = dataclasses.replace(unknown.setting, accelerator=ACCELERATOR._replace(achieved=None))
    unknown = plans.make_plan(setting, unknown.schedule, 'none', partition_by=[4, 8])
    assert (known.step_time, known.ends, known.device_bytes) == (unknown.step_time, unknown.ends, unknown.device_bytes)


BY_HAND = accelerators.Accelerator('by hand', 0, 1.0, 1.0, memory_bandwidth=4.0, link_bandwidth=2.0)
TIMES = LayerTime(1.0, 4.0, 0.5), LayerTime(2.0, 6.0, 1.25)


def costs(recompute, num_stages=1, times=TIMES):
    """Return the costs of stages that hold the same layers each."""
    memories = [SimpleNamespace(outputs=6, weights=10 / len(times))] * len(times)
    model = plans.cost_model(list(times) * num_stages, memories * num_stages, recompute, BY_HAND, 0.5)
    return model.stages([len(times) * (index + 1) for index in range(num_stages)])


@pytest.mark.parametrize(
    'recompute, again, backward', [('none', 0.0, 5.0), ('stage', 3.0, 5.0), ('layer', 1.0, 5.0 + 1.75)])
def test_times_of_layers_are_added_up_and_what_is_computed_again_counts(recompute, again, backward):
    """With 'layer' R runs all layers but the last, and B once more what it reads of each layer.

    Nobody wants gradients by the inputs of the first stage.
    """
    first, second = costs(recompute, 2)
    assert second == schedules.StageCosts(
        forward=3.0, backward=backward, weight_gradient=5.0, recompute=again, transfer=3.0, update=(3 * 10 + 2 * 5) / 4)
    assert first == dataclasses.replace(second, backward=0.0, weight_gradient=backward + 5.0)


def test_recompute_layer_adds_nothing_for_a_stage_of_one_layer():
    """It computes nothing again ahead of its backward pass."""
    stage, = costs('layer', times=[LayerTime(1.0, 4.0, 1.0)])
    assert stage.recompute == 0.0
