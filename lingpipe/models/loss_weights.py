"""How much each of several losses weighs in a whole mini-batch, found before any output of it is computed."""

import keras
import tensorflow as tf

from lingpipe.pipeline import boundary, control_flow, graph_pieces, stage


def weights_of_batch(pipe, loss, x, targets):
    """Computes what the mean of each loss over a mini-batch divides by.

    A mask goes its own way through a model, from the inputs to the outputs, past all weights. So the model and its losses are
    traced as one graph, and of it no more is run than the weights of the losses need. Zeros take the place of the outputs, of
    which but the shapes matter::

        tokens ─┬─> not equal to 0 ─> mask ───────────┬─> weight of the loss
                └─> embedding ─> layers ─> outputs    │   (below: traced, but not run)
                                             zeros ─> loss

    Args:
        pipe: a built `GPipeLayer`.
        loss: `compiled_loss.CompiledLoss`, whose weights are to be found.
        x: nest of tensors `[batch, ...]`, the input.
        targets: `compiled_loss.Targets` of the mini-batch.

    Returns:
        List of scalars, one a loss; None where a weight depends on more than masks, targets and sample weights.
    """
    inputs, structure = boundary.unpack(x), boundary.structure_of(x)
    variables = [variable for layer in pipe.stack for variable in layer.variables]
    weights, zeros = [], []

    def trace(inputs, targets, values):
        with keras.StatelessScope(state_mapping=list(zip(variables, values)), initialize_variables=False):
            outputs = stage.call_layers(pipe.stack, boundary.pack(inputs, structure), training=True)
            parts = boundary.unpack(outputs)
            zeros.extend(_zeros_in_place_of(output, targets.fractions) for output in parts.values)
            blank = boundary.pack(parts._replace(values=list(zeros)), boundary.structure_of(outputs))
            weights.extend(loss.weights(targets, blank))

    specs = tf.nest.map_structure(_spec_of, (inputs, targets, variables))
    trace = tf.function(trace, autograph=False).get_concrete_function
    graph = control_flow.past_moved_variables(lambda: control_flow.until_traced(trace, *specs)).graph
    given = tf.nest.flatten((inputs, targets))
    arguments, values = graph.inputs[:len(given)], graph.inputs[len(given):]
    if _depend_on(weights, values, zeros, arguments):
        return None
    piece = graph_pieces.GraphPiece(graph, arguments, weights, name='weights_of_losses')
    known, _ = piece({inner.ref(): outer for inner, outer in zip(arguments, given)})
    return [known[weight.ref()] for weight in weights]


def _zeros_in_place_of(output, fractions):
    """An output with an open size has to say it itself."""
    sizes = output.shape[1:]
    if not sizes.is_fully_defined():
        return tf.zeros_like(output)
    return tf.zeros(tf.stack([tf.shape(fractions)[0], *sizes]), output.dtype)


def _depend_on(weights, values, zeros, arguments):
    """Whether the weights of losses need those of the model, random numbers, or the values of outputs."""
    stops = {tensor.ref() for tensor in arguments}
    graph = weights[0].graph
    shapes = {operation.outputs[0].ref() for operation in graph.get_operations() if operation.type in ('Shape', 'Size')}
    needed, read = graph_pieces.ancestors(weights, stops=stops), graph_pieces.ancestors(weights, stops=stops | shapes)
    return (any(tensor.op in needed for tensor in values) or any(tensor.op in read for tensor in zeros)
            or any(operation.op_def.is_stateful for operation in needed))


def _spec_of(tensor):
    return tf.TensorSpec(tensor.shape, tensor.dtype)
