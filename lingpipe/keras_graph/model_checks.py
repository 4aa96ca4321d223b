"""Checks that micro-batches change no result of a model, and that the model fits its input."""

import dataclasses
from typing import Any

import keras
import tensorflow as tf

from lingpipe.keras_graph import model_units
from lingpipe.stages import row_dependence, row_rules

_BATCH_ONLY = 'Set num_micro_batches=1, or compute it in the loss.'


def refuse_mixed_rows(graph: Any, outputs: list[int]) -> None:
    """Raise ValueError if a model needs the whole batch at once.

    `keras.ops`, Lambdas and layers with `axis=0` must not mix the rows of a batch. Other layers may mix rows, as batch
    norm does. The first dimension of each output must be the batch.
    """
    specs = keras.tree.flatten(graph.input_structure)
    if any(spec.shape.rank == 0 for spec in specs):
        return
    sizes = {spec.shape[0] for spec in specs} - {None}  # of the batch, if the model fixes it
    units = [_of_any_batch(unit, sizes) for unit in graph.units]
    try:
        values = _values(units, specs, traces_sizes=False)
    except _SizesDifferError:
        values = _values(units, specs, traces_sizes=True)
    for number in outputs:
        if not values[number].is_rows:
            name = next((unit.name for unit in graph.units if number in unit.outputs), graph.model.name)
            raise ValueError(
                f'The output of layer {name!r} has the shape {_shapes(values[number])}: its first dimension is not the '
                'batch, so outputs of micro-batches cannot be put together. Set num_micro_batches=1, or put the batch '
                'first.')


def refuse_mixed_layers(layers: list[keras.layers.Layer], specs: list) -> None:
    """Raise ValueError if a Lambda or a layer with axis 0 mixes rows. `specs` has the input specs of each layer."""
    for layer, nest in zip(layers, specs):
        given = tf.nest.map_structure(lambda spec: None if spec is None else row_dependence.rows(spec), nest)
        if _works_on_the_batch(layer, [value for value in tf.nest.flatten(given) if value is not None]):
            for value in _traced(layer, given):
                _refuse_mixed(layer, value)


def _traced(layer: Any, given: Any) -> list[row_dependence.Value]:
    try:
        return row_dependence.of_function(lambda inputs: layer(inputs, training=False), given).values
    except Exception:  # noqa: BLE001  a user's layer may raise anything for these sizes
        return []


def _of_any_batch(unit: Any, sizes: set[int]) -> Any:
    """Copy a unit, with an unknown batch size in its output specs."""
    return dataclasses.replace(unit, specs=[
        tf.TensorSpec([None, *spec.shape[1:]], spec.dtype) if spec.shape.rank and spec.shape[0] in sizes else spec
        for spec in unit.specs])


class _SizesDifferError(Exception):
    """The error of an operation that rejects the sizes chosen for unknown dimensions."""


def _values(units: list, specs: list, traces_sizes: bool) -> dict[int, row_dependence.Value]:
    """Find how each tensor of a model depends on the rows of the batch."""
    values = {number: row_dependence.rows(spec) for number, spec in enumerate(specs)}
    for unit in units:
        given = [values[number] for number in unit.inputs]
        values.update(zip(unit.outputs, _results(unit, given, traces_sizes)))
    return values


def _results(unit: Any, given: list[row_dependence.Value], traces_sizes: bool) -> list[row_dependence.Value]:
    """Find how each output of a unit depends on the rows of the batch."""
    is_checked = _works_on_the_batch(unit.layer, given)
    if not is_checked:
        _refuse_other_axis(unit, given)
    is_open = any(None in (spec.shape[1:] if spec.shape.rank else ()) for spec in unit.specs)
    if not (is_checked or is_open and traces_sizes or any(map(_is_lost, unit.specs)) or _is_of_a_user(unit.layer)):
        return _assumed(unit, given)
    try:
        found = row_dependence.of_function(_function_of(unit), given).values
    except Exception as error:  # a user's layer may raise anything for these sizes
        if is_checked and is_open and not traces_sizes:
            raise _SizesDifferError from error
        return _assumed(unit, given)
    if len(found) != len(unit.specs):
        return _assumed(unit, given)
    for value, spec in zip(found, unit.specs):
        if is_checked or _is_lost(spec):
            _refuse_mixed(unit, value)
        elif not value.grows_only_in_rows:
            raise ValueError(f'Layer {unit.name!r} returns a tensor of shape {_shapes(value)}, so it compares the rows '
                             f'of a batch, but would get only the rows of one micro-batch. {_BATCH_ONLY}')
    return found if is_checked else [
        value if _is_lost(spec) else row_dependence.Value(row_rules.ROWS, value.specs)
        for value, spec in zip(found, unit.specs)]


def _shapes(value: row_dependence.Value) -> str:
    one, other = (tuple(spec.shape) for spec in value.specs)
    return f'{one} for a batch of {row_rules.NUM_ROWS[0]} rows and {other} for one of {row_rules.NUM_ROWS[1]}'


def _function_of(unit: Any) -> Any:
    """Return a unit as a function of a list of tensors."""
    def run(inputs):
        zeros = [(variable, tf.zeros(variable.shape, variable.dtype)) for variable in unit.variables]
        with keras.StatelessScope(state_mapping=zeros, initialize_variables=False):
            return unit(list(inputs), training=False)

    return run


def _works_on_the_batch(layer: Any, given: list[row_dependence.Value]) -> bool:
    """Return True for layers that must not mix rows: `keras.ops`, Lambdas, axis 0 or None, except batch norm."""
    if not isinstance(layer, keras.layers.Layer) or isinstance(layer, keras.layers.Lambda):
        return True
    rank = max((value.specs[0].shape.rank or 0 for value in given), default=0) or 1
    axes = tf.nest.flatten([getattr(layer, name, ()) for name in ('axis', 'axes')])
    return not isinstance(layer, keras.layers.BatchNormalization) and any(
        axis is None or isinstance(axis, int) and axis % rank == 0 for axis in axes)


def _is_of_a_user(layer: Any) -> bool:
    return type(layer).__module__.split('.')[0] not in ('keras', 'keras_hub', 'lingpipe')


def _is_lost(spec: tf.TensorSpec) -> bool:
    return spec.shape.is_fully_defined()


def _refuse_other_axis(unit: Any, given: list[row_dependence.Value]) -> None:
    """Raise ValueError if an input has the batch in a dimension other than the first."""
    for value in given:
        if value.dependence not in (row_rules.ROWS, row_rules.CONSTANT):
            raise ValueError(
                f'An input of layer {unit.name!r} has the batch in dimension {value.dependence.axis}, but layers take '
                'micro-batches, which are parts of the first dimension. Transpose it first.')


def _refuse_mixed(unit: Any, value: row_dependence.Value) -> None:
    form, power = value.dependence.form, value.dependence.power
    if form is row_rules.Form.SUM or _is_lost(value.specs[0]) and form is row_rules.Form.MIXED and (
            value.specs[0].shape == value.specs[1].shape):
        raise ValueError(
            f'Layer {unit.name!r} makes a tensor of shape {tuple(value.specs[0].shape)} of all examples of a batch, '
            f'but would get only the rows of one micro-batch. {_BATCH_ONLY}')
    if form is row_rules.Form.MIXED or power:
        raise ValueError(
            f'Layer {unit.name!r} mixes the examples of a batch, but would see only the rows of one micro-batch; or '
            f'its graph does not show that it keeps them apart. {_BATCH_ONLY} If it does keep them apart, make it a '
            'keras.layers.Layer of your own.')


def _assumed(unit: Any, given: list[row_dependence.Value]) -> list[row_dependence.Value]:
    """Assume that the first dimension of each output is the batch, unless all sizes of the output are known."""
    places = max((value.specs[0].shape[0] // row_rules.NUM_ROWS[0] for value in given
                  if value.dependence == row_rules.ROWS), default=1)
    return [row_dependence.Value(row_rules.CONSTANT, (spec, spec)) if _is_lost(spec)
            else row_dependence.rows(spec, places) for spec in unit.specs]


def refuse_unfit(model: keras.Model, functional: Any, given: Any) -> None:
    """Raise ValueError if the model does not take the sizes of `given`, a nest of specs `[batch, ...]`."""
    functional._assert_input_compatibility(model_units.without_others(functional, given))
    refuse_long(model, functional, model_units.flat_inputs(functional, given))


def refuse_long(model: keras.Model, functional: Any, tensors: list) -> None:
    """Raise ValueError if there are more tokens than position embeddings."""
    sizes = [layer.sequence_length for layer in model._flatten_layers()
             if hasattr(layer, 'position_embeddings') and hasattr(layer, 'sequence_length')]
    for symbol, tensor in zip(functional.inputs, tensors):
        length = tensor.shape[1] if symbol.name.endswith('token_ids') and tensor is not None else None
        if sizes and length is not None and length > max(sizes):  # XLA would use wrong embeddings
            raise ValueError(f'sequence_length={length} of {symbol.name!r} is too long for model '
                             f'{model.name!r}, which knows {max(sizes)} positions. Set it to {max(sizes)} at most; a '
                             'model without a preset has max_sequence_length in its backbone_arguments.')
