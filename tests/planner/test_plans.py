import numpy as np
import pytest

from lingpipe import schedules
from lingpipe.partition import layer_memory, memory_model
from lingpipe.planner import accelerators, plans
from tests.planner import stacks


def made(name='gpipe', num_partitions=2, num_micro_batches=4, recompute='none', **kwargs):
    return plans.make_plan(
        stacks.setting(**kwargs), schedules.make_schedule(name, num_partitions, num_micro_batches), recompute)


def test_weights_slots_and_gradients_are_reported_by_partition():
    first, second = made(num_slots=1).partitions
    for part in (first, second):
        assert len(part.layer_names) == 4 and part.num_parameters == stacks.WEIGHTS
        assert (part.weights, part.slots, part.gradients) == (4 * stacks.WEIGHTS,) * 3


@pytest.mark.parametrize('recompute, name, boundary, kept', [
    ('none', 'gpipe', (4, 4), (4, 4)), ('none', '1f1b', (2, 1), (2, 1)), ('stage', 'gpipe', (4, 4), (1, 1)),
    ('stage', '1f1b', (2, 1), (1, 1))])
def test_activations_are_those_that_schedule_and_recomputation_keep(recompute, name, boundary, kept):
    row = stacks.BATCH // 4 * stacks.ROW
    found = made(name, recompute=recompute)
    memories, start = found.setting.stack.memories(8), 0
    for part, end, waiting, of_others in zip(found.partitions, found.ends, boundary, kept):
        assert part.boundary == waiting * row
        alone = plan_of_one_micro_batch(found, memories[start:end], recompute)
        assert part.working == alone + (of_others
                                        - 1) * sum(layer.read_inputs - layer.repeated_reads + layer.internals
                                                   + layer.read_outputs for layer in memories[start:end]
                                                      ) - (of_others - 1) * memories[start].read_inputs
        start = end


def plan_of_one_micro_batch(found, memories, recompute):
    """What is at work with no other micro-batch in flight, by the memory model."""
    model = memory_model.MemoryModel(memories, [1], recompute, 2)
    weights = 4 * sum(layer.weights for layer in memories)
    return int(model(*np.array([[0], [0], [len(memories)]]))[0]) - weights - memories[0].inputs


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
