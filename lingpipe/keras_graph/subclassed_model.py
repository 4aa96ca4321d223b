"""Subclassed models whose `call` consists only of layer calls."""

import inspect
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from lingpipe.private_api import Functional


class CallGraph(NamedTuple):
    """A graph of layer calls that can replace one call of a model."""

    functional: Any  # a Functional model over the same layers
    inputs: list  # the symbolic tensors that the call receives, in the order of `functional.inputs`
    masks: list  # a mask or None for each input
    description: Any  # equal for equal calls


def graph_of_call(node: Any) -> CallGraph | None:
    """Return the `CallGraph` of a model's call, or None if no graph can replace the call.

    The method `call` of the model must only call layers and `keras.ops`. The calls must be the same in training and
    inference. The method must not read or assign variables, or use arrays that are not arguments.
    """
    model = node.operation
    if _is_more_than_its_call(model, node):
        return None
    traces = [_trace(node, training) for training in (True, False)]
    if None in traces or traces[0].description != traces[1].description:
        return None
    graph = traces[0]
    owned = {id(variable) for operation in graph.functional.operations if isinstance(operation, keras.layers.Layer)
             for variable in operation.variables}
    return graph if all(id(variable) in owned for variable in model.variables) else None


def _is_more_than_its_call(model, node):
    parameters = inspect.signature(model.call).parameters
    floats = [tensor for tensor in node.input_tensors if 'float' in tensor.dtype]
    has_own_mask = type(model).compute_mask is not keras.layers.Layer.compute_mask
    return (
        has_own_mask and not isinstance(model, (Functional, keras.Sequential))
        or model.supports_masking or model.activity_regularizer is not None
        or any(name == 'mask' or name.endswith('_mask') for name in parameters)  # Keras fills these in
        or any(tensor.dtype != model.compute_dtype for tensor in floats))


def _trace(node, training):
    model, inputs = node.operation, list({id(tensor): tensor for tensor in node.input_tensors}.values())
    symbols = [keras.Input(batch_shape=tensor.shape, dtype=tensor.dtype) for tensor in inputs]
    # Some of Keras's layers return another float type than their symbols say, so Keras's cast at the call is repeated.
    casts = model.compute_dtype != model.variable_dtype
    given = [keras.ops.cast(symbol, model.compute_dtype) if casts and 'float' in symbol.dtype else symbol
             for symbol in symbols]
    args, kwargs = node.arguments.fill_in(dict(zip(map(id, inputs), given)))
    if 'training' in inspect.signature(model.call).parameters:
        kwargs = {**kwargs, 'training': training}
    try:
        with keras.StatelessScope() as scope:
            outputs = model.call(*args, **kwargs)
        functional = Functional(symbols, keras.tree.flatten(outputs), name=model.name)
        _require_runnable(functional)
        description = _description(functional, training)
    except Exception:  # a model may raise anything for symbolic tensors, for which it was not written
        return None
    if scope.state_mapping or scope.losses or len(keras.tree.flatten(outputs)) != len(node.outputs):
        return None
    return None if description is None else CallGraph(functional, inputs, [None] * len(inputs), description)


def _require_runnable(functional):
    # A reshape, for instance, may have been given the unknown batch size, None. Then the model cannot run.
    specs = [tf.TensorSpec([2 if size is None and place == 0 else size for place, size in enumerate(symbol.shape)],
                           symbol.dtype) for symbol in functional.inputs]
    with keras.StatelessScope():
        tf.function(lambda values: functional(values, training=False), autograph=False).get_concrete_function(specs)


def _description(functional, training):
    """Describe each layer call by its arguments. Return None if an argument is an array or another `training`."""
    names = {id(tensor): ('input', place) for place, tensor in enumerate(functional.inputs)}
    description = []
    for place, node in enumerate(calls(functional)):
        arguments = [names[id(leaf)] if isinstance(leaf, keras.KerasTensor) else leaf
                     for leaf in keras.tree.flatten((node.arguments.args, {**node.arguments.kwargs, 'training': None}))]
        given = node.arguments.kwargs.get('training', training)
        if any(hasattr(leaf, 'shape') for leaf in arguments) or given not in (training, None):
            return None  # because of an array or another value of `training`
        description.append((_identity(node.operation), [repr(leaf) for leaf in arguments]))
        names.update({id(tensor): (place, output) for output, tensor in enumerate(node.outputs)})
    return [*description, [names[id(tensor)] for tensor in functional.outputs]]


def _identity(operation):
    """Return a key of an operation, the same in every trace."""
    if isinstance(operation, keras.layers.Layer):
        return id(operation)
    return type(operation).__name__, repr({**operation.get_config(), 'name': None})  # may be a new object in each trace


def calls(functional: Any) -> list:
    """Return the nodes of a Functional model in the order in which Keras runs them."""
    by_depth = functional._nodes_by_depth  # pylint: disable=protected-access
    return [node for depth in sorted(by_depth, reverse=True) for node in by_depth[depth] if not node.is_input]
