"""Functions that keep nothing for their gradients but their inputs."""

import tensorflow as tf
from tensorflow.compiler.tf2xla.python import xla


def recomputing(function, run=None):
    """Makes a function compute everything again for its gradient (arXiv 1604.06174), inside of what XLA compiles.

    An optimization barrier keeps XLA from seeing that it was all computed before: `tf.recompute_grad` has no such barrier, and
    XLA undoes it.

    Args:
        function: function from a list of tensors to a list of tensors.
        run: what applies such functions, a `StageMap` or the like; None: they are called.

    Returns:
        Function with the same arguments and results.
    """
    run = run or (lambda function, tensors: function(tensors))

    @tf.custom_gradient
    def forward(*tensors):
        outputs = run(function, list(tensors))

        def gradient(*output_gradients):
            given = [tf.zeros_like(output) if each is None else each
                     for output, each in zip(outputs, output_gradients) if output.dtype.is_floating]
            found = iter(run(_backward(function, len(tensors)), [*tensors, *given]))
            return [next(found) if tensor.dtype.is_floating else None for tensor in tensors]

        return outputs, gradient

    return lambda tensors: list(forward(*tensors))


def _backward(function, num_inputs):
    """Returns the function from inputs and gradients of floating-point outputs to the gradients of floating-point inputs."""

    def backward(tensors):
        tensors = xla.optimization_barrier(*tensors)
        inputs, output_gradients = tensors[:num_inputs], tensors[num_inputs:]
        differentiated = [tensor for tensor in inputs if tensor.dtype.is_floating]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(differentiated)
            outputs = [output for output in function(list(inputs)) if output.dtype.is_floating]
        return tape.gradient(
            outputs, differentiated, list(output_gradients), unconnected_gradients=tf.UnconnectedGradients.ZERO)

    return backward
