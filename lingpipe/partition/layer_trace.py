"""The forward and backward pass of a layer as one graph, traced without allocating anything."""

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from lingpipe import hyperparams
from lingpipe.layers import base_layer
from lingpipe.partition import layer_analysis
from lingpipe.stages import control_flow


class LayerTrace(NamedTuple):
    """A traced layer.

    Attributes:
        graph: `FuncGraph`, whose first arguments are the layer's inputs and the others its variables.
        inputs: list of the tensors of the inputs.
        outputs: list of the tensors of the outputs.
        given: list of placeholders for the gradients of the outputs; empty without a backward pass.
        wanted: list of the gradients of inputs and weights; without a backward pass the outputs.
        output_specs: nest of `tf.TensorSpec` of the outputs.
    """

    graph: Any
    inputs: list
    outputs: list
    given: list
    wanted: list
    output_specs: Any


def trace(layer: Any, specs: Any, has_backward: bool = True) -> LayerTrace:
    """Traces a layer forward and backward.

    Args:
        layer: built layer; its variables need not be allocated.
        specs: nest of `tf.TensorSpec` of its inputs, every dimension known.
        has_backward: whether it has a backward pass: it has a trained weight, or its inputs depend on one.

    Returns:
        `LayerTrace`.
    """
    given, results = [], {}

    def output_gradients(outputs):
        given.extend(tf.compat.v1.placeholder(tensor.dtype, tensor.shape) for tensor in outputs)
        return given

    def passes(inputs, values):
        if has_backward:
            results['outputs'], results['gradients'] = layer_analysis.forward_and_backward(
                layer, inputs, values, output_gradients)
        else:
            results['outputs'] = layer_analysis.forward(layer, inputs, values)

    graph = control_flow.until_traced(
        tf.function(passes, autograph=False).get_concrete_function,
        specs, [tf.TensorSpec(variable.shape, variable.dtype) for variable in layer.variables]).graph
    outputs = tf.nest.flatten(results['outputs'])
    return LayerTrace(
        graph, graph.inputs[:len(tf.nest.flatten(specs))], outputs, given, results.get('gradients', outputs),
        tf.nest.map_structure(lambda tensor: tf.TensorSpec(tensor.shape, tensor.dtype), results['outputs']))


def look_at_each(layer_params: list[hyperparams.InstantiableParams], input_specs: Any,
                 look: Callable[[Any, Any], tuple[Any, Any]]) -> list:
    """Calls a function for every layer of a stack with the specs of its inputs, once for equal params and inputs.

    Args:
        layer_params: list of InstantiableParams of Keras layers.
        input_specs: nest of `tf.TensorSpec` `[micro_batch, ...]` of the input, every dimension known.
        look: function from a built layer, whose variables are not allocated, and the specs of its inputs to a result
            and the specs of the outputs.

    Returns:
        List of the results, one per layer.
    """
    known, found, specs = {}, [], input_specs
    for params in layer_params:
        key = layer_analysis.identity(params), str(specs)
        if key not in known:
            with base_layer.unallocated_variables():
                layer = params.Instantiate()
                layer_analysis.build_layer(layer, specs)
                known[key] = look(layer, specs)
        one, specs = known[key]
        found.append(one)
    return found
