import itertools

import numpy as np
import pytest

from lingpipe import schedules
from lingpipe.partition import exact_cut, memory_model, stage_costs, step_time_cut
from lingpipe.partition.layer_profile import LayerTime


def drawn_model(seed, num_layers, recompute='stage'):
    """Layers of very different times, slow transfers and updates."""
    random = np.random.default_rng(seed)
    forward = random.lognormal(0.0, 0.7, num_layers)
    times = [LayerTime(seconds, seconds * factor, seconds / 2)
             for seconds, factor in zip(forward, random.uniform(1.5, 2.5, num_layers))]
    return stage_costs.StageCostModel(
        times, recompute, random.uniform(0.0, 0.3, num_layers), random.uniform(0.0, 0.5, num_layers)), times


def even_cut(times, num_stages):
    return exact_cut.balanced_partition_ends([time.seconds for time in times], num_stages)


def brute_force(schedule, model):
    """Simulate every cut by itself."""
    return min(schedule.simulate(model.stages([*inner, model.num_layers])).seconds
               for inner in itertools.combinations(range(1, model.num_layers), schedule.num_stages - 1))


@pytest.mark.parametrize('seed, name, sizes, recompute', [
    (0, '1f1b', (4, 4), 'none'), (1, 'gpipe', (3, 2), 'stage'), (2, 'zb_h1', (4, 3), 'stage'),
    (3, 'interleaved_1f1b', (2, 2, 2), 'layer'), (4, 'zb_v', (2, 3, 2), 'none'), (5, '1f1b', (5, 2), 'layer')])
def test_no_cut_has_a_shorter_step(seed, name, sizes, recompute):
    schedule = schedules.make_schedule(name, *sizes)
    model, times = drawn_model(seed, 11, recompute)
    ends = step_time_cut.fastest_ends(schedule, model, even_cut(times, schedule.num_stages))
    assert schedule.simulate(model.stages(ends)).seconds == pytest.approx(brute_force(schedule, model))


def test_a_search_finds_nearly_the_best_of_too_many_cuts(monkeypatch):
    monkeypatch.setattr(step_time_cut, '_MOST_TIMES', 0)
    for seed in range(20):
        schedule = schedules.make_schedule('1f1b', 4, 4)
        model, times = drawn_model(seed, 12)
        ends = step_time_cut.fastest_ends(schedule, model, even_cut(times, 4))
        assert schedule.simulate(model.stages(ends)).seconds <= 1.03 * brute_force(schedule, model)


def test_the_best_of_the_cuts_that_fit_is_taken():
    schedule = schedules.make_schedule('1f1b', 3, 2)
    model, times = drawn_model(7, 9)
    budget = memory_model.MemoryBudget([1.0] * 9, 4.0, 9, range(3))
    ends = step_time_cut.fastest_ends(schedule, model, [3, 6, 9], budget.fitting)
    fitting = [[a, b, 9] for a, b in itertools.combinations(range(1, 9), 2) if max(a, b - a, 9 - b) <= 4]
    assert ends in fitting
    assert schedule.simulate(model.stages(ends)).seconds == pytest.approx(
        min(schedule.simulate(model.stages(each)).seconds for each in fitting))


def test_the_limit_holds_for_all_stages_of_a_device_at_once():
    budget = memory_model.MemoryBudget([3, 1, 1, 3, 1], 5, 5, [0, 1, 0, 1])
    cuts = np.array([[1, 2, 3, 5], [1, 2, 4, 5], [2, 3, 4, 5]])
    assert budget.fitting(cuts).tolist() == [budget.fits(cut) for cut in cuts.tolist()] == [True, False, False]
