"""A Keras model flattened into a list of layer calls, in the model's own order."""

import collections
import dataclasses
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from lingpipe.keras_graph import subclassed_model
from lingpipe.private_api import Functional, keras_backend, masking


@dataclasses.dataclass(eq=False)
class Unit:
    """One call of one layer. A model is cut between units."""

    name: str  # unique, such as 'encoder/dense:1': path through nested models, and number of a shared layer's call
    position: int  # among the units of the model
    layer: Any  # Keras layer, or Keras operation such as an addition
    call_index: int  # number of earlier calls of the same layer
    function: Callable  # from a list of tensors and `training` to a list of tensors
    inputs: list[int]  # numbers of the values that it reads
    outputs: list[int]  # numbers of the values that it computes
    specs: list[tf.TensorSpec]  # of the outputs; unknown sizes are None

    @property
    def layers(self) -> list[keras.layers.Layer]:
        """List of the Keras layers whose variables the unit uses."""
        return [self.layer] if isinstance(self.layer, keras.layers.Layer) else []

    @property
    def variables(self) -> list[keras.Variable]:
        """List of the variables of the unit's layers."""
        return [variable for layer in self.layers for variable in layer.variables]

    def __call__(self, values: list, training: bool | None) -> list:
        return self.function(values, training)

    def with_logits(self, positions: list[int], numbers: list[int]) -> 'Unit':
        """Return a copy of the unit that also returns the logits of some outputs.

        Args:
            positions: indices of these outputs.
            numbers: the numbers that identify the logits.
        """
        def function(values, training):
            results = self.function(values, training)
            return [*results, *(results[position]._keras_logits for position in positions)]

        specs = [*self.specs, *(self.specs[position] for position in positions)]
        return dataclasses.replace(self, function=function, outputs=[*self.outputs, *numbers], specs=specs)

    def without(self, absent: set[int]) -> 'Unit':
        """Return the unit without some inputs and outputs: their numbers are in `absent`, their values are None."""
        if absent.isdisjoint([*self.inputs, *self.outputs]):
            return self

        def function(values, training):
            present = iter(values)
            results = self.function([None if number in absent else next(present) for number in self.inputs], training)
            return [result for number, result in zip(self.outputs, results)
                    if number not in absent or result is not None]

        inputs = [number for number in self.inputs if number not in absent]
        made = [(number, spec) for number, spec in zip(self.outputs, self.specs) if number not in absent]
        outputs, specs = [list(column) for column in zip(*made)] or ([], [])
        return dataclasses.replace(self, function=function, inputs=inputs, outputs=outputs, specs=specs)


class FlatModel(NamedTuple):
    """A model as a list of units, which are layer calls. Its tensors are numbered, the inputs first."""

    functional: Any  # the graph of layer calls that Keras holds for the model
    units: list  # each after the units that it reads from
    outputs: list  # numbers of the values that the model returns, flat
    # pairs (name, graph when flattened) of the model and of each model nested in it; the graph of a model that stays
    # whole is None. The graphs of a model that has not changed are equal.
    graphs: list


def flatten_model(model: keras.Model) -> FlatModel:
    """List the layer calls of a built model. Nested models that only call layers are flattened too.

    Raises:
        ValueError: the model or one of its layers cannot be cut.
    """
    functional = _require_functional(model)
    flattening = _Flattening(len(functional.inputs))
    flattening.graphs.append((model.name, functional))
    outputs = flattening.inline(functional, list(range(len(functional.inputs))), '', _dtype_inside(model, None))
    if not flattening.units:
        raise ValueError(f'Model {model.name!r} computes nothing between its inputs and outputs. Add layers to it.')
    return FlatModel(functional, flattening.units, outputs, flattening.graphs)


def flat_inputs(functional: Any, inputs: Any) -> list:
    """Return the leaves of `inputs`, a nest that the model accepts, in the order of `functional.inputs`."""
    if isinstance(inputs, dict) and not isinstance(functional.input, dict):
        return [inputs[tensor.name] for tensor in functional.inputs]
    return keras.tree.flatten(without_others(functional, inputs))


def without_others(functional: Any, inputs: Any) -> Any:
    """Return inputs without entries that the model does not take."""
    if isinstance(inputs, dict) and isinstance(functional.input, dict):  # Keras would flatten all entries
        return {name: value for name, value in inputs.items() if name in functional.input}
    return inputs


class _Flattening:
    """A collector of units."""

    def __init__(self, num_inputs):
        self.units, self.graphs = [], []
        self._num_values = num_inputs
        self._num_calls = collections.Counter()  # of each layer, directly and inside nested models

    def inline(self, functional, inputs, path, dtype):
        """Add the units of a model, and return the numbers of its outputs."""
        values = dict(zip(map(id, functional.inputs), inputs))
        for node in subclassed_model.calls(functional):
            name, nested = path + node.operation.name, _nested(node)
            if isinstance(node.operation, keras.Model):
                self.graphs.append((name, nested and nested.description))
            if nested is not None:
                results = self._enter(nested, values, f'{name}/', _dtype_inside(node.operation, dtype))
            else:
                arguments = [values[id(tensor)] for tensor in node.input_tensors]
                results = self._add(name, node.operation, _call_of(node, dtype), arguments, node.outputs)
            values.update(zip(map(id, node.outputs), results))
        return [values[id(tensor)] for tensor in functional.outputs]

    def _enter(self, nested, values, path, dtype):
        inputs, expected = [values[id(tensor)] for tensor in nested.inputs], nested.functional.inputs
        masks = [values[id(mask)] for mask in nested.masks if mask is not None]
        if masks or any(_kind(outer) != _kind(inner) for outer, inner in zip(nested.inputs, expected)):
            function = _entry_of(nested.functional, [mask is not None for mask in nested.masks])
            inputs = self._add(f'{path}inputs', NestedInputs(nested.functional), function, inputs + masks, expected)
        return self.inline(nested.functional, inputs, path, dtype)

    def _add(self, name, layer, function, inputs, symbols):
        _refuse_unbuilt(name, layer)
        _refuse_stateful(name, layer)
        call_index = self._num_calls[layer]
        self._num_calls[layer] += 1
        outputs = list(range(self._num_values, self._num_values + len(symbols)))
        self._num_values += len(symbols)
        specs = [tf.TensorSpec(symbol.shape, symbol.dtype) for symbol in symbols]
        name = f'{name}:{call_index}' if call_index else name
        self.units.append(Unit(name, len(self.units), layer, call_index, function, inputs, outputs, specs))
        return outputs


class NestedInputs(NamedTuple):
    """The `layer` of a `Unit` that prepares the inputs of a nested model."""

    functional: Any


def _nested(node):
    """Return the graph that can replace a call, or None if there is none."""
    functional = _functional_of(node.operation)
    if functional is None:
        return subclassed_model.graph_of_call(node) if isinstance(node.operation, keras.Model) else None
    bound = inspect.signature(node.operation.call).bind(*node.arguments.args, **node.arguments.kwargs).arguments
    inputs = flat_inputs(functional, bound.pop('inputs'))
    mask = bound.pop('mask', None)
    masks = [None] * len(inputs) if mask is None else keras.tree.flatten(mask)
    leaves = [*inputs, *(mask for mask in masks if mask is not None)]
    # In Keras the outermost `training` overrides that of a nested call, which is ignored.
    if set(bound) - {'training'} or not all(isinstance(leaf, keras.KerasTensor) for leaf in leaves):
        return None
    return subclassed_model.CallGraph(functional, inputs, masks, functional)


def _functional_of(model):
    """Return the graph of a model whose call only runs this graph, or None for another model."""
    if isinstance(model, keras.Sequential) and type(model).call is keras.Sequential.call:
        functional = model._functional  # pylint: disable=protected-access
    elif isinstance(model, Functional) and type(model).call is Functional.call:
        functional = model
    else:
        return None
    return None if model.supports_masking or model.activity_regularizer is not None else functional


def _call_of(node, dtype):
    operation, arguments = node.operation, node.arguments
    is_layer = isinstance(operation, keras.layers.Layer)

    def call(values, training):
        args, kwargs = arguments.fill_in(dict(zip(map(id, arguments.keras_tensors), values)))
        if is_layer:
            mode = {} if training is None else {'training': training}
            return keras.tree.flatten(operation(*args, **{**kwargs, **mode}))
        with keras_backend.AutocastScope(dtype):
            return keras.tree.flatten(operation(*args, **kwargs))

    return call


def _dtype_inside(model, outside):
    """Return the dtype to which a model's `keras.ops` calls cast variables, or None."""
    if not model.autocast or not keras_backend.is_float_dtype(model.compute_dtype):
        return None  # no cast
    # outside: the dtype of the outer model
    return None if outside is None and model.compute_dtype == model.variable_dtype else model.compute_dtype


def _entry_of(functional, is_masked):
    def enter(values, training):
        del training
        inputs, masks = values[:len(is_masked)], iter(values[len(is_masked):])
        # pylint: disable-next=protected-access
        inputs = functional._adjust_input_rank(functional._convert_inputs_to_tensors(inputs))
        for tensor, masked in zip(inputs, is_masked):
            if masked:
                masking.set_keras_mask(tensor, next(masks))
        return inputs

    return enter


def _kind(tensor):
    return tensor.dtype, len(tensor.shape)


def _require_functional(model):
    if not isinstance(model, keras.Model):
        raise ValueError(f'model is a {type(model).__name__}, not a keras.Model. Write it as a '
                         'keras.Sequential or Functional model, or give its layers to GPipeLayer.Params() as a list.')
    own = [variable.path for variable in [*model._trainable_variables, *model._non_trainable_variables]]
    if own:
        raise ValueError(f'Model {model.name!r} has {own[:3]}, weights that no layer of it has. Put them into a layer.')
    functional = _functional_of(model)
    if functional is not None:
        return functional
    if isinstance(model, keras.Sequential) and type(model).call is keras.Sequential.call and not model.built:
        raise ValueError(f'Sequential model {model.name!r} is not built, so the shapes between its layers are unknown. '
                         'Begin it with keras.Input(shape), or call model.build(input_shape) first.')
    raise ValueError(
        f'Model {model.name!r} of class {type(model).__name__} is more than a graph of layers: it has its own call, '
        'compute_mask or activity regularizer, or nested inputs to a Sequential. Call it on symbols, of which it is '
        'seen how its layers are joined: inputs = keras.Input(shape, dtype=dtype); keras.Model(inputs, model(inputs)).')


def _refuse_unbuilt(name, layer):
    if not getattr(layer, 'built', True):
        raise ValueError(f'Layer {name!r} has no weights yet. Call the model once on a batch before it is cut.')


def _refuse_stateful(name, layer):
    # pylint: disable-next=protected-access
    layers = layer._flatten_layers() if isinstance(layer, keras.layers.Layer) else []
    if any(getattr(sublayer, 'stateful', False) for sublayer in layers):
        raise ValueError(f'Layer {name!r} is stateful: each row continues where that of the last batch ended, which '
                         'micro-batches tear apart. Set stateful=False, and make its state an input and an output of '
                         'the model.')
