"""One layer as functions of its inputs and variables, in training mode."""

import keras
import tensorflow as tf

from lingpipe.pipeline import stage


def forward(layer, inputs, values):
    """Calls a built layer, reading and changing none of its variables.

    Args:
        layer: Keras layer.
        inputs: nest of tensors `[batch, ...]`.
        values: list of tensors, in the order of `layer.variables`.

    Returns:
        Nest of tensors `[batch, ...]`.
    """
    with keras.StatelessScope(state_mapping=list(zip(layer.variables, values)), initialize_variables=False):
        return stage.call_layers([layer], inputs, training=True)


def forward_and_backward(layer, inputs, values, output_gradients):
    """Calls a built layer and computes the gradients of its floating-point inputs and its weights.

    Args:
        layer: Keras layer.
        inputs: nest of tensors `[batch, ...]`.
        values: list of tensors, in the order of `layer.variables`.
        output_gradients: function from the floating-point outputs to the list of their gradients.

    Returns:
        Nest of outputs, and the list of gradients, of the inputs first, then of the trainable variables.
    """
    trainable = {id(variable) for variable in layer.trainable_variables}
    weights = [value for variable, value in zip(layer.variables, values) if id(variable) in trainable]
    sources = floats(inputs) + weights
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(sources)
        outputs = forward(layer, inputs, values)
        differentiated = floats(outputs)
    gradients = tape.gradient(
        differentiated, sources, output_gradients(differentiated), unconnected_gradients=tf.UnconnectedGradients.ZERO)
    return outputs, [tf.convert_to_tensor(gradient) for gradient in gradients]


def floats(nest):
    """Returns the floating-point tensors, or specs, of a nest as a list."""
    return [tensor for tensor in tf.nest.flatten(nest) if tensor.dtype.is_floating]
