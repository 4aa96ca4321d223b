"""Costs of stages from the times of their layers, for one cut or for many at once."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from lingpipe.partition.layer_analysis import LayerAnalysis
from lingpipe.partition.layer_profile import LayerTime
from lingpipe.schedules import StageCosts

# A backward pass computes two gradients where the forward pass computes one product.
_FLOPS_OF_BACKWARD = 2
# The part of a forward pass's time that recompute='selective' may repeat if there is no memory limit.
MOST_SELECTIVE = 0.3


class StageCostModel:
    """The costs of any run of layers as a stage, for one cut or for many at once.

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
        forward, backward, recomputed = np.array(times, np.float64).reshape([-1, 3]).T
        repeated = np.where(backward > 0, forward, 0.0)
        nothing = np.zeros_like(forward)
        self.num_layers = len(times)
        self._transfers = nothing if transfers is None else np.asarray(transfers)
        self._last_is_left_out = repeated if recompute == 'layer' else nothing
        inside, ahead = {
            'none': (nothing, nothing), 'selective': (nothing, MOST_SELECTIVE * repeated),
            'stage': (nothing, repeated), 'layer': (recomputed, repeated)}[recompute]
        updates = nothing if updates is None else np.asarray(updates)
        rows = [forward, backward / 2 + inside, backward / 2, ahead, updates]
        self._sums = np.pad(np.cumsum(rows, axis=1), [[0, 0], [1, 0]])

    def __call__(self, starts: Any, ends: Any) -> np.ndarray:
        """Return the costs `[6, ...]`, the fields of `StageCosts`, of stages that hold layers `start` to `end - 1`."""
        forward, backward, weight_gradient, ahead, update = self._sums[:, ends] - self._sums[:, starts]
        is_first = np.equal(starts, 0)
        weight_gradient = weight_gradient + np.where(is_first, backward, 0.0)
        backward = np.where(is_first, 0.0, backward)
        # Differences of sums leave rounding errors of what cancels.
        recompute = np.maximum(ahead - self._last_is_left_out[ends - 1], 0.0)
        return np.stack([forward, backward, weight_gradient, recompute, self._transfers[ends - 1], update])

    def stages(self, ends: Sequence[int]) -> list[StageCosts]:
        """Return the `StageCosts` of each stage of one cut."""
        return [StageCosts(*costs) for costs in self(np.array([0, *ends[:-1]]), np.array(ends)).T.tolist()]


def times_by_flops(analyses: Sequence[LayerAnalysis]) -> list[LayerTime]:
    """Return a `LayerTime` for each layer, as if every floating-point operation took a second."""
    return [LayerTime(*(layer.flops.total * factor for factor in (1, _FLOPS_OF_BACKWARD * layer.has_backward,
                                                                  layer.has_backward))) for layer in analyses]
