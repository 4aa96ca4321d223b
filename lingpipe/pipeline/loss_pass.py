"""Mean loss, gradients and metrics of a batch, with the loss inside the pipeline."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from lingpipe.devices import device_kinds, variable_placement
from lingpipe.pipeline import executor, gradient_flow, layer_sources, stage_grid
from lingpipe.stages import losses


class ValueAndGrad(NamedTuple):
    """Result of `GPipeLayer.value_and_grad`."""

    loss: tf.Tensor  # scalar, the mean over the batch plus weight regularisers and the losses that layers add
    gradients: list  # in the order of `trainable_variables`; None for one that the loss does not depend on
    metrics: dict  # from name to the mean over the batch, for loss functions that return several metrics
    # from name, 'loss' included, to the parts of the mean: (sum, weight), or the sums of a state of
    # `losses.LossAndStates`
    sums: dict
    squared_norm: tf.Tensor  # scalar, the sum of squares of all gradients
    state_updates: list  # pairs (variable, new value) that are still to be assigned; empty if they were assigned
    outputs: Any  # outputs of the stack `[batch, ...]`, or None


class StageLoss:
    """A loss function `(targets, outputs) -> {name: tuple of sums}` for the last stage.

    `targets_of` returns the targets. `losses.means` computes metrics from the sums and the attribute `results`.
    """

    def __init__(self, loss_fn: Callable, source: layer_sources.LayerSource) -> None:
        self._metrics, self._source = losses.as_metrics(loss_fn), source
        self.results = losses.results_of(loss_fn)

    def __call__(self, targets: Any, outputs: Any) -> dict:
        return self._metrics(targets[0], self._source.pack_outputs(outputs), *targets[1:])


def targets_of(y_true: Any, sample_weight: Any) -> tuple:
    """Return the targets for a `StageLoss`, as a tuple."""
    return (y_true,) if sample_weight is None else (y_true, sample_weight)


def value_and_grad(grid: stage_grid.StageGrid, loss: StageLoss, x: Any, targets: tuple, step: tf.Tensor | None,
                   return_outputs: bool, assign_state: bool, loss_scale: tf.Tensor | None,
                   read: Callable[[keras.Variable], tf.Tensor]) -> ValueAndGrad:
    """Build a training step up to the gradients; see `GPipeLayer.value_and_grad`.

    The gradients are in the order of `grid.trainable_variables`. The outputs are what the last stage returns.
    """
    stages = grid.stages
    options = executor.PassOptions(grid.schedule, grid.seed_and_step(step, True), True, loss,
                                   observer=grid.observer, loss_scale=loss_scale)
    batch = grid.mini_batch(options, variable_placement.read_values(stages, read), x, targets)
    batch.run()
    sums = batch.take_sums_of_group()
    (_, weight), factor = sums.metrics['loss'], batch.loss_factors.gradient_factor
    finished = gradient_flow.finish(stages, batch.state.final_values(), sums,
                                    weight if factor is None else weight * factor, batch.group)
    mean_loss, metrics, squared_norm = device_kinds.call(
        stages[-1].device, functools.partial(_mean_of_batch, loss.results), sums.metrics, sums.losses,
        [part.regularization for part in finished], [part.squared_norm for part in finished])
    outputs = batch.join_outputs() if return_outputs else None
    updates = batch.state_updates()
    if assign_state:
        updates = variable_placement.assign(updates)
    gradients = {id(variable): gradient for part in finished
                 for variable, gradient in zip(part.variables, part.gradients)}
    return ValueAndGrad(mean_loss, [gradients.get(id(variable)) for variable in grid.trainable_variables], metrics,
                        sums.metrics, squared_norm, updates, outputs)


def _mean_of_batch(results: Any, metric_sums: dict, added_sums: list, regularizations: list,
                   squared_norms: list) -> tuple[tf.Tensor, dict, tf.Tensor]:
    metrics = losses.means(metric_sums, results)
    mean_loss = losses.add_up([metrics.pop('loss'), *losses.means_of_added(added_sums), *regularizations])
    return mean_loss, metrics, losses.add_up(squared_norms)


def evaluate(grid: stage_grid.StageGrid, loss: StageLoss, x: Any, targets: tuple,
             read: Callable[[keras.Variable], tf.Tensor]) -> dict[str, Any]:
    """Build an evaluation step and return the metric sums; see `GPipeLayer.evaluate`."""
    options = executor.PassOptions(grid.schedule.forward_only(), grid.seed_and_step(0, False), False, loss)
    batch = grid.mini_batch(options, variable_placement.read_values(grid.stages, read), x, targets)
    batch.run()
    sums = batch.take_sums_of_group()
    return device_kinds.call(grid.stages[-1].device, losses.with_added, sums.metrics, sums.losses)
