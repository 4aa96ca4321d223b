"""A pipeline whose loss lies outside of it: forward now, backward when a gradient tape asks."""

import tensorflow as tf

from lingpipe.distribute import device_calls, device_kinds
from lingpipe.pipeline import boundary, losses, micro_batches, variable_values
from lingpipe.pipeline import schedule as schedules


def call(pipe, inputs, training):
    """Lays out the forward actions, and the backward actions as their gradient.

    Each stage's weights enter through a port on their own device, so that none of them ever leaves it::

        weights of stage k ─> port k (device k) ─> token ─┐
        inputs ───────────────────────────────────────────┴─> pipeline ─> outputs
                                backward: the pipeline's gradient runs all B actions, port k's hands out the sums of stage k

    Args:
        pipe: a built `GPipeLayer`.
        inputs: nest of tensors `[batch, ...]`.
        training: Python boolean.

    Returns:
        Nest of tensors `[batch, ...]`.
    """
    values = variable_values.read_values(pipe.stages, training)
    results = {}
    tokens = [_port(stage, value.weights, results) for stage, value in zip(pipe.stages, values)]

    @tf.custom_gradient
    def run(*sources):
        batch = _replace_floats(inputs, sources[len(tokens):])
        execution = pipe.execution(
            batch, training, values, pipe.schedule.forward_then_backward(), input_gradients_needed=True)
        execution.run([schedules.FORWARD])
        results['execution'] = execution
        with tf.device(device_kinds.for_single_operations(pipe.stages[-1].device)):
            results['outputs'] = micro_batches.join(execution.outputs)
        return boundary.unpack(results['outputs']).values, gradient

    def gradient(*upstream):
        return [tf.zeros([])] * len(tokens) + _input_gradients(results, upstream, pipe.stages)

    floats = boundary.unpack(inputs).floats
    outputs = run(*tokens, *floats)
    if training:
        variable_values.assign(results['execution'].state_updates())
    masks = boundary.unpack(results['outputs']).masks
    return boundary.pack(boundary.Boundary(list(outputs), masks), boundary.structure_of(results['outputs']))


def evaluate(pipe, inputs):
    """Lays out the forward actions in evaluation mode, for a loss outside of the pipeline.

    Args:
        pipe: a built `GPipeLayer`.
        inputs: nest of tensors `[batch, ...]` that the first stage takes.

    Returns:
        Nest of outputs `[batch, ...]`, as the last stage hands them out, and the list of the means of the losses that layers
        added, one a stage that has such layers.
    """
    values = variable_values.read_values(pipe.stages, False)
    execution = pipe.execution(inputs, False, values, pipe.schedule.forward_only())
    execution.run()
    with tf.device(device_kinds.for_single_operations(pipe.stages[-1].device)):
        outputs = micro_batches.join(execution.outputs)
    return outputs, device_calls.call(pipe.stages[-1].device, losses.means_of_added, execution.sums.losses)


def _port(stage, weights, results):
    @tf.custom_gradient
    def port(*weights):
        return tf.zeros([]), lambda upstream: results['sums'].weight_gradients[stage.index]

    with tf.device(device_kinds.for_single_operations(stage.device)):
        return port(*weights) if weights else tf.zeros([])


def _input_gradients(results, upstream, stages):
    execution = results['execution'].fork()
    with tf.device(device_kinds.for_single_operations(stages[-1].device)):
        floats = [upstream[position] for position in boundary.unpack(results['outputs']).float_positions]
        execution.give_output_gradients(micro_batches.split(floats, execution.num_micro_batches))
    execution.run([schedules.BACKWARD])
    results['sums'] = execution.sums
    with tf.device(device_kinds.for_single_operations(stages[0].device)):
        return micro_batches.join(results['sums'].input_gradients)


def _replace_floats(nest, floats):
    parts = boundary.unpack(nest)
    values = dict(enumerate(parts.values)) | dict(zip(parts.float_positions, floats))
    return boundary.pack(parts._replace(values=list(values.values())), boundary.structure_of(nest))
