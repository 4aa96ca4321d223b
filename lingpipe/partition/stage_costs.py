"""Costs of stages from the times of their layers."""

import collections
from collections.abc import Sequence

import numpy as np

from lingpipe.partition.layer_analysis import LayerAnalysis
from lingpipe.partition.layer_profile import LayerTime
from lingpipe.schedules import Schedule, StageCosts

# A backward pass computes two gradients where the forward pass computes one product.
_FLOPS_OF_BACKWARD = 2
# The part of a forward pass's time that recompute='selective' may repeat if there is no memory limit.
MOST_SELECTIVE = 0.3


class StageCostModel:
    """The costs of any run of layers as a stage.

    With recompute='layer' a first forward pass recomputes the inputs of the layers. It does not run the last layer, and
    is not needed if a backward action (B) directly follows its own forward action. A second forward pass, inside B,
    recomputes only what B reads of each layer.

    Gradients of the inputs of the first stage are not needed. What its B would compute on the way to the weights is a
    part of its weight-gradient action (W).

    Args:
        times: the times of each layer for one micro-batch.
        recompute: 'selective' counts as if it used all the time that it may.
        transfers: for each layer, the seconds that its outputs take to the next device; None: 0.
        updates: for each layer, the seconds of the update of its weights, once per step; None: none.
    """

    def __init__(self, times: Sequence[LayerTime], recompute: str, transfers: Sequence[float] | None = None,
                 updates: Sequence[float] | None = None) -> None:
        forward, backward, recomputed = np.array(times, np.float64).T
        repeated = np.where(backward > 0, forward, 0.0)
        nothing = np.zeros_like(forward)
        self._transfers = nothing if transfers is None else np.asarray(transfers)
        self._last_is_left_out = repeated if recompute == 'layer' else nothing
        inside, ahead = {
            'none': (nothing, nothing), 'selective': (nothing, MOST_SELECTIVE * repeated),
            'stage': (nothing, repeated), 'layer': (recomputed, repeated)}[recompute]
        updates = nothing if updates is None else np.asarray(updates)
        self._layers = np.stack([forward, backward / 2 + inside, backward / 2, ahead, updates])

    def of_layers(self, schedule: Schedule) -> np.ndarray:
        """Return the mean costs of layers for a micro-batch, `[stages, layers]`.

        A backward action that directly follows its own forward action recomputes nothing ahead: all of 1F1B's last
        stage, and one of every stage of GPipe.
        """
        kept = collections.Counter(action.stage for action in schedule.backwards_after_own_forward())
        repeats = np.array([[1 - kept[stage] / schedule.num_micro_batches] for stage in range(schedule.num_stages)])
        forward, backward, weight_gradient, ahead, _ = self._layers
        return forward + backward + weight_gradient + repeats * ahead

    def stages(self, ends: Sequence[int]) -> list[StageCosts]:
        """Return the `StageCosts` of each stage of a cut."""
        starts, last = [0, *ends[:-1]], np.array(ends) - 1
        forward, backward, weight_gradient, ahead, update = np.add.reduceat(self._layers, starts, axis=1)
        weight_gradient[0] += backward[0]
        backward[0] = 0.0
        recompute = np.maximum(ahead - self._last_is_left_out[last], 0.0)  # sums have rounding errors
        costs = forward, backward, weight_gradient, recompute, self._transfers[last], update
        return [StageCosts(*row) for row in np.transpose(costs).tolist()]


def times_by_flops(analyses: Sequence[LayerAnalysis]) -> list[LayerTime]:
    """Return a `LayerTime` for each layer, as if every floating-point operation took a second."""
    return [LayerTime(*(layer.flops.total * factor for factor in (1, _FLOPS_OF_BACKWARD * layer.has_backward,
                                                                  layer.has_backward))) for layer in analyses]
