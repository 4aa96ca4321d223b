import dataclasses
from types import SimpleNamespace

import pytest

from lingpipe import schedules
from lingpipe.partition.layer_profile import LayerTime
from lingpipe.planner import accelerators, plans

ACCELERATOR = accelerators.Accelerator('by hand', 0, 1.0, 1.0, memory_bandwidth=4.0, link_bandwidth=2.0)
TIMES = LayerTime(1.0, 4.0, 0.5), LayerTime(2.0, 6.0, 1.25)


def costs(recompute, num_stages=1, times=TIMES):
    """Returns the costs of stages that hold the same layers each."""
    memories = [SimpleNamespace(outputs=6, weights=10 / len(times))] * len(times)
    model = plans.cost_model(list(times) * num_stages, memories * num_stages, recompute, ACCELERATOR, 0.5)
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
