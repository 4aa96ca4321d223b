"""One trace of a stage: forward and backward together, as tensors of one graph."""

from typing import NamedTuple

import tensorflow as tf

from lingpipe.layers import replica_sums
from lingpipe.pipeline import boundary


class Trace(NamedTuple):
    """The tensors of a traced stage.

    ::

        inputs ─> segment 0 ─> between[0] ─> segment 1 ─> outputs ─> loss          forward
           │                      │                          │
        input gradients  <─ gradients between[0]  <─  given gradients              backward, and sums + weight gradients

    Attributes:
        outputs: `Boundary`.
        output_structure: `Structure` of the outputs.
        forward: dictionary with `outputs`, `statistics`, `state`, `metrics` and `losses` (a list with the sum of the losses
            that layers added and the number of rows, or an empty one).
        between: list of `Boundary`s, what passes from each segment to the next.
        given_gradients: list of placeholders for the gradients of the floating-point outputs, or of the loss; one for the
            added losses follows where there are any.
        given_sums: list of placeholders for the sums of weight gradients over the micro-batches so far.
        input_gradients: list of the gradients of the floating-point inputs.
        between_gradients: for each entry of `between`, the gradients of its floating-point values.
        sums: list of `given_sums` plus this micro-batch's weight gradients.
    """

    outputs: boundary.Boundary
    output_structure: boundary.Structure
    forward: dict
    between: list
    given_gradients: list
    given_sums: list
    input_gradients: list
    between_gradients: list
    sums: list


def trace_function(stage, structure, loss, training, by_layer, traces):
    """Returns the function to trace; it appends its `Trace` to `traces`, since a return value would be a copy of tensors.

    Args:
        stage: the `Stage`.
        structure: `Structure` of the inputs.
        loss: function `(targets, outputs) -> {name: (sum, weight)}`, or None.
        training: Python boolean.
        by_layer: whether gradients between the segments are wanted.
        traces: list to append to.
    """

    def function(inputs, targets, statistics, values, position):
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(inputs.floats + values.weights)
            with replica_sums.working_for(stage.replica(position[4], position[5])):
                call = stage.call(
                    boundary.pack(inputs, structure), values, position[1], stage.seeds(position[:2], position[2]), training)
            metrics = {} if loss is None else loss(targets, call.outputs)
            losses = _added_losses(call.losses, inputs)
            outputs = boundary.unpack(call.outputs)
            differentiated = (outputs.floats if loss is None else [metrics['loss'][0]]) + losses[:1]
        between = [boundary.unpack(nest) for nest in call.between] if by_layer else []
        is_empty = _is_empty(inputs)
        merged = stage.statistics(training).merge(
            statistics, call.statistics, _share_of_rows(inputs, position[3]), is_empty)
        forward = {'outputs': outputs, 'statistics': merged, 'state': call.state, 'metrics': metrics, 'losses': losses}
        traces.append(Trace(outputs, boundary.structure_of(call.outputs), forward, between,
                            *_backward(tape, differentiated, inputs.floats, values.weights, between, is_empty)))

    return function


def _backward(tape, differentiated, inputs, weights, between, is_empty):
    given_gradients = [tf.compat.v1.placeholder(tensor.dtype, tensor.shape) for tensor in differentiated]
    groups = [inputs, weights, *[point.floats for point in between]]
    gradients = tape.gradient(
        differentiated, groups, given_gradients, unconnected_gradients=tf.UnconnectedGradients.ZERO)
    input_gradients, weight_gradients, *between_gradients = [
        [tf.convert_to_tensor(gradient) for gradient in group] for group in gradients]
    given_sums = [tf.compat.v1.placeholder(weight.dtype, weight.shape) for weight in weights]
    sums = [total + gradient for total, gradient in zip(given_sums, _zero_where(is_empty, weight_gradients))]
    return given_gradients, given_sums, input_gradients, between_gradients, sums


def _added_losses(losses, inputs):
    """The mean over the mini-batch weighs a micro-batch's losses by its rows."""
    if not losses:
        return []
    rows = tf.cast(tf.shape(inputs.values[0])[0], tf.float32)
    return [tf.math.multiply_no_nan(tf.add_n([tf.cast(tf.reduce_sum(loss), tf.float32) for loss in losses]), rows), rows]


def _is_empty(inputs):
    """Whether this micro-batch has no rows, which batch norm answers with NaN; None where it is known to have some."""
    first = inputs.values[0]
    return None if first.shape[0] else tf.equal(tf.shape(first)[0], 0)


def _zero_where(is_empty, gradients):
    if is_empty is None:
        return gradients
    return [tf.where(is_empty, tf.zeros([], gradient.dtype), gradient) for gradient in gradients]


def _share_of_rows(inputs, rows_before):
    rows = tf.shape(inputs.values[0], tf.int64)[0]
    return tf.cast(tf.math.divide_no_nan(tf.cast(rows, tf.float64), tf.cast(rows_before + rows, tf.float64)), tf.float32)
