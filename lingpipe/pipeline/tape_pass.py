"""Pass of a batch whose loss is outside the pipeline. A gradient tape asks for the backward actions."""

from collections.abc import Iterable
from typing import Any

import keras
import tensorflow as tf

from lingpipe import schedules
from lingpipe.devices import device_kinds, variable_placement
from lingpipe.pipeline import executor, stage_grid
from lingpipe.private_api import save_context
from lingpipe.stages import boundary, losses, micro_batches, stage_layers
from lingpipe.stages.stage import Stage


def call(grid: stage_grid.StageGrid, inputs: Any, training: bool | None) -> tuple[Any, list[tf.Tensor]]:
    """Build the forward actions, with the backward actions as the gradient.

    No weight leaves its device. Each stage has a port, a function on the stage's device. The port takes the weights,
    and returns the scalar 0 as a token. The gradient function of the port returns the gradients of the weights::

        weights of stage k ─> port k (device k) ─> token ─┐
        inputs ───────────────────────────────────────────┴─> pipeline ─> outputs, added losses
                backward: the pipeline's gradient runs all B actions; port k's gradient returns the sums of stage k

    Returns:
        The nest of outputs `[batch, ...]`, and a list: for each stage that adds losses, what it adds to the loss.
    """
    values = variable_placement.read_values(grid.stages)
    # Trace the stages, because in a custom gradient TensorFlow would register all variables that a trace reads.
    _mini_batch(grid, inputs, training, values, step=0)
    results: dict[str, Any] = {}
    tokens = [_port(stage, variables, weights, results)
              for stage, (variables, weights) in zip(grid.stages, _owned_weights(grid.stages, values))]

    @tf.custom_gradient
    def run(*sources: Any) -> tuple:
        given = _replace_differentiable(inputs, sources[len(tokens):])
        batch = results['batch'] = _mini_batch(grid, given, training, values)
        _refuse_borrowed(batch.state.borrowed_from_outside, training)
        batch.run([schedules.FORWARD])
        results['outputs'] = batch.join_outputs()
        return boundary.unpack(results['outputs']).values + _means_of_added(grid, batch), gradient

    def gradient(*upstream: Any, variables: Any = ()) -> list:
        if variables:
            raise ValueError(f'A layer of the pipeline reads {[variable.name for variable in variables[:3]]}, a '
                             'tf.Variable, to which a pipeline that is called as a layer gives no gradient. Make it by '
                             'add_weight, or set trainable=False.')
        if save_context.in_save_context():
            return [tf.zeros([])] * len(tokens) + _not_saved(boundary.unpack(inputs).differentiable)
        return [tf.zeros([])] * len(tokens) + _input_gradients(results, upstream, grid.stages)

    found = list(run(*tokens, *boundary.unpack(inputs).differentiable))
    variable_placement.assign(results['batch'].state_updates())
    outputs = boundary.unpack(results['outputs'])
    count = len(outputs.values)
    given = boundary.Boundary(found[:count], outputs.masks)
    return boundary.pack(given, boundary.structure_of(results['outputs'])), found[count:]


def _mini_batch(grid: stage_grid.StageGrid, inputs: Any, training: bool | None, values: Any,
                step: Any = None) -> stage_grid.MiniBatch:
    options = executor.PassOptions(
        grid.schedule.forward_then_backward(), grid.seed_and_step(step, training), training,
        input_gradients_needed=True)
    return grid.mini_batch(options, values, inputs)


def evaluate(grid: stage_grid.StageGrid, inputs: Any) -> tuple[Any, list[tf.Tensor]]:
    """Build the forward actions in evaluation mode, and return what `call` returns."""
    options = executor.PassOptions(grid.schedule.forward_only(), grid.seed_and_step(None, False), False)
    batch = grid.mini_batch(options, variable_placement.read_values(grid.stages), inputs)
    batch.run()
    variable_placement.assign(batch.state_updates())
    return batch.join_outputs(), _means_of_added(grid, batch)


def _means_of_added(grid: stage_grid.StageGrid, batch: stage_grid.MiniBatch) -> list[tf.Tensor]:
    return device_kinds.call(grid.stages[-1].device, losses.means_of_added, list(batch.added_losses.values()))


def _owned_weights(stages: list[Stage],
                   values: list[stage_layers.Variables]) -> list[tuple[list[keras.Variable], list[tf.Tensor]]]:
    """Return, for each stage, the weights that no earlier stage has, and their values."""
    seen, rows = set(), []
    for stage, value in zip(stages, values):
        own = [pair for pair in zip(stage.variables().weights, value.weights) if id(pair[0]) not in seen]
        seen |= {id(variable) for variable, _ in own}
        rows.append(([variable for variable, _ in own], [weight for _, weight in own]))
    return rows


def _port(stage: Stage, variables: list[keras.Variable], weights: list, results: Any) -> tf.Tensor:
    @tf.custom_gradient
    def port(*weights: Any) -> tuple:
        def gradient(upstream: Any) -> list:
            if save_context.in_save_context():
                return _not_saved(variables)
            with tf.device(device_kinds.for_single_operations(stage.device)):
                return [_total(results['sums'], variable) for variable in variables]

        return tf.zeros([]), gradient

    with tf.device(device_kinds.for_single_operations(stage.device)):
        return port(*weights) if weights else tf.zeros([])


def _not_saved(tensors: list) -> list[tf.Tensor]:
    """Return a gradient for each tensor: a saved model that computes one raises an error."""
    advice = (
        'A saved pipeline computes outputs, but no gradients. Load the .keras file, or the plain model, to train on.')
    with tf.control_dependencies([tf.debugging.Assert(False, [advice])]):
        return [tf.zeros([size or 1 for size in tensor.shape], tensor.dtype) for tensor in tensors]


def _total(sums: micro_batches.Sums, variable: keras.Variable) -> Any:
    """Return the gradient of a variable, summed over stages, or None if no output depends on the variable."""
    parts = [gradient for variables, gradients in zip(sums.weights, sums.weight_gradients)
             for other, gradient in zip(variables, gradients) if other is variable]
    return micro_batches.total(parts, variable.shape) if parts else None


def _refuse_borrowed(variables: list[keras.Variable], training: bool | None) -> None:
    trainable = [variable.path for variable in variables if variable.trainable]
    if trainable and training:
        raise ValueError(
            f'A layer of the pipeline reads {trainable[:3]}, weights that no layer inside of it has, to which a '
            'pipeline that is called as a layer gives no gradient. Make the layer that owns them a part of the '
            'pipeline, or set their trainable to False.')


def _input_gradients(results: Any, upstream: Any, stages: list[Stage]) -> list[tf.Tensor]:
    batch, outputs = results['batch'].fork(), boundary.unpack(results['outputs'])
    with tf.device(device_kinds.for_single_operations(stages[-1].device)):
        given = [upstream[position] for position in outputs.differentiable_positions]
        pairs = zip(upstream[len(outputs.values):], batch.added_losses.items())
        added = {index: tf.math.divide_no_nan(gradient, rows) for gradient, (index, (_, rows)) in pairs}
        batch.give_output_gradients(micro_batches.split(given, len(batch.row_counts)), added)
    batch.run([schedules.BACKWARD])
    results['sums'] = batch.take_sums()
    with tf.device(device_kinds.for_single_operations(stages[0].device)):
        return micro_batches.join(results['sums'].input_gradients, batch.row_counts)


def _replace_differentiable(nest: Any, tensors: Iterable) -> Any:
    parts = boundary.unpack(nest)
    values = dict(enumerate(parts.values)) | dict(zip(parts.differentiable_positions, tensors))
    return boundary.pack(parts._replace(values=list(values.values())), boundary.structure_of(nest))
