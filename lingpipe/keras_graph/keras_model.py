"""A Keras model as a list of units, which are layer calls. The model can be cut between any two units."""

import itertools
import math
from typing import Any

import keras
import tensorflow as tf

from lingpipe.devices import variable_placement
from lingpipe.keras_graph import model_checks, model_segments, model_units
from lingpipe.layers import base_layer
from lingpipe.optimizers import optimizer_parts
from lingpipe.partition import layer_analysis
from lingpipe.partition.layer_analysis import LayerAnalysis
from lingpipe.private_api import masking
from lingpipe.stages import random_seeds


def _hand_out_logits(units, outputs, values):
    """Let units return the logits of model outputs, in addition to these outputs."""
    # A cross-entropy needs logits, since probabilities near 0 or 1 are rounded to 0 or 1. Keras attaches them to the
    # tensor, but they would be lost when the tensor leaves a partition.
    found, logits = [], {}  # logits: from the index of a model output to the number of its logits
    for unit in units:
        places = {place: unit.outputs.index(number) for place, number in enumerate(outputs) if number in unit.outputs}
        given = [values[number] for number in unit.inputs]
        if places and set(places.values()) <= _positions(unit, given, True) & _positions(unit, given, False):
            numbers = {place: max(values) + 1 + index for index, place in enumerate(places)}
            values.update((number, values[outputs[place]]) for place, number in numbers.items())
            unit = unit.with_logits(list(places.values()), list(numbers.values()))
            logits.update(numbers)
        found.append(unit)
    return found, logits


def _positions(unit, inputs, training):
    """Return the indices of a unit's outputs that have Keras logits."""
    found = set()

    def find(unused_arguments, results):
        found.update(place for place, tensor in enumerate(results) if _has_logits(tensor))

    try:
        _concrete(unit, inputs, training, find)
    except TypeError:
        return set()  # because of unknown sizes in the model
    return found


def _concrete(unit, inputs, training, read):
    """Trace a unit and the function `read` in one graph."""
    def run(inputs, values):  # inputs: pairs (tensor, its Keras mask)
        arguments = [tensor for tensor, _ in inputs]
        for tensor, mask in inputs:
            masking.set_keras_mask(tensor, mask)
        with keras.StatelessScope(state_mapping=list(zip(unit.variables, values)), initialize_variables=False):
            outputs = unit(list(arguments), training=training)
        return read(arguments, outputs)

    return tf.function(run, autograph=False).get_concrete_function(
        inputs, [tf.TensorSpec(variable.shape, variable.dtype) for variable in unit.variables])


def _has_logits(tensor):
    logits = getattr(tensor, '_keras_logits', None)
    if logits is None or logits.graph is not tensor.graph:
        return False
    return logits.dtype == tensor.dtype and logits.shape == tensor.shape


class ModelGraph:
    """A model flattened into units, one for each layer call, in Keras's order.

    Args:
        model: built `keras.Sequential` or Functional `keras.Model`. Nested models are flattened too if they only call
            layers and `keras.ops`.

    Attributes:
        output_specs: list of `tf.TensorSpec` of the outputs for one example, set by `analyses`.

    Raises:
        ValueError: the model cannot be cut.
    """

    def __init__(self, model: keras.Model) -> None:
        self.model = model
        self._functional, self.units, self._outputs, self._graphs = model_units.flatten_model(model)
        self.output_specs: list[tf.TensorSpec] = []
        self._logits: dict[int, int] = {}  # from the place of an output of the model to the number of its logits
        self._first_units: dict[int, int] = {}
        # From a value to the first unit that removes its mask, as Keras's attention does; later readers see none.
        self._unmasked: dict[int, int] = {}
        for index, unit in enumerate(self.units):
            for variable in unit.variables:
                self._first_units.setdefault(id(variable), index)

    @property
    def input_structure(self) -> Any:
        """Nest of `tf.TensorSpec` of the model's inputs."""
        return keras.tree.map_structure(_spec_of, self._functional.input)

    @property
    def output_structure(self) -> Any:
        """Nest of `tf.TensorSpec` of the model's outputs. A list of one tensor becomes that tensor."""
        structure = self._functional.output
        if isinstance(structure, (list, tuple)) and len(structure) == 1:
            structure = structure[0]  # as in Keras
        return keras.tree.map_structure(_spec_of, structure)

    def refuse_micro_batches(self) -> None:
        """Raise ValueError if micro-batches would change what the model computes."""
        model_checks.refuse_mixed_rows(self, self._outputs)

    def refuse_changes(self) -> None:
        """Raise ValueError if the graph of the model or a nested model has changed since the cut."""
        now = model_units.flatten_model(self.model).graphs
        for before, after in itertools.zip_longest(self._graphs, now, fillvalue=('', None)):
            if before != after:
                raise ValueError(
                    f'Model {before[0] or after[0]!r} calls other layers, or calls them otherwise, than when the '
                    'pipeline was made of it: by add or pop, or because an attribute that its call reads has changed. '
                    'Make a new pipeline of it by GPipeLayer.from_keras.')

    def flatten_inputs(self, inputs: Any) -> list[tf.Tensor]:
        """Flatten a user's nest of tensors `[batch, ...]`. Cast and reshape the tensors as the model does."""
        inputs = model_units.without_others(self._functional, inputs)
        # pylint: disable=protected-access
        self._functional._assert_input_compatibility(inputs)
        tensors = self._functional._standardize_inputs(inputs)
        model_checks.refuse_long(self.model, self._functional, tensors)
        return tensors

    def pack_outputs(self, outputs: list) -> Any:
        """Pack the tensors of the last stage into the nest that the model returns."""
        outputs, logits = outputs[:len(self._outputs)], outputs[len(self._outputs):]
        for place, tensor in zip(self._logits, logits):
            outputs[place]._keras_logits = tensor  # where Keras's cross-entropies look for them
        return keras.tree.pack_sequence_as(self.output_structure, outputs)

    def stages(self, ends: list[int]) -> list[model_segments.StageParts]:
        """Cut the model into stages. The argument `ends` is as in `model_segments.cut`."""
        return model_segments.cut(self.units, [*self._outputs, *self._logits.values()], ends, self._unmasked)

    def move_variables(self, stage_parts: list[model_segments.StageParts], devices: list[str]) -> None:
        """Move the variables and the optimizer slots of each stage to the stage's device, in place."""
        self._allocate(random_seeds.seed_generator_states([self.model]))  # initializers may draw from them
        model_segments.move_variables(stage_parts, devices)
        self._allocate([*self.model.variables, *self.model.metrics_variables])  # no unit reads these
        for layer in self.model._flatten_layers():  # pylint: disable=protected-access
            if getattr(layer, 'optimizer', None) is not None:
                optimizer_parts.move_slots(layer.optimizer)

    def _allocate(self, variables):
        for variable in variables:
            if not variable_placement.is_allocated(variable):
                model_segments.place_variable(variable, 'CPU:0')

    def analyses(self, input_specs: Any = None) -> list[LayerAnalysis]:
        """Analyse each unit from shapes, without running the unit.

        Parameters of a shared layer count only in the first call of the layer.

        Args:
            input_specs: nest of `tf.TensorSpec` that gives sizes which the model leaves unknown. The batch size is
                taken as 1. None: unknown sizes stay unknown, and count as 1 in `Flops`.
        """
        if input_specs is not None:
            model_checks.refuse_unfit(self.model, self._functional, input_specs)
        specs = model_units.flat_inputs(self._functional, self.input_structure if input_specs is None else input_specs)
        flops, values = self._trace([tf.TensorSpec([1, *spec.shape[1:]], spec.dtype) for spec in specs])
        self.output_specs = [values[number][0] for number in self._outputs]
        self._leave_out({number for number, (spec, _) in values.items() if spec is None})
        if not self._logits:
            self.units, self._logits = _hand_out_logits(self.units, self._outputs, values)
        sizes = [[_num_values(self.own_weights(index)[0]), _num_values(self._own_frozen_weights(index))]
                 for index in range(len(self.units))]
        return [
            LayerAnalysis(unit.name, type(unit.layer).__name__, num_parameters, found,
                          [values[number][0] for number in unit.outputs], has_backward, num_frozen)
            for unit, (num_parameters, num_frozen), found, has_backward in zip(
                self.units, sizes, flops, self.units_with_backward())]

    def value_specs(self, input_specs: Any) -> dict[int, tuple]:
        """Return the specs of the tensors between units. `input_specs` must have no unknown size.

        Returns:
            Dictionary from the number of a tensor to a pair (`tf.TensorSpec`, spec of the Keras mask or None).
        """
        return self._trace(model_units.flat_inputs(self._functional, input_specs))[1]

    def own_weights(self, index: int) -> tuple[list[keras.Variable], ...]:
        """Return the trainable and the non-trainable weights of a unit, except weights that an earlier unit uses."""
        layers = self.units[index].layers
        own = [weight for layer in layers for weight in layer.weights if self._is_own(weight, index)]
        return tuple([weight for weight in own if weight.trainable == wanted] for wanted in (True, False))

    def _own_frozen_weights(self, index):
        frozen = base_layer.frozen_weights(self.units[index].layers)
        return [weight for weight in frozen if self._is_own(weight, index)]

    def _is_own(self, weight, index):
        """Return whether no earlier unit uses `weight`."""
        return self._first_units.setdefault(id(weight), index) == index

    def units_with_backward(self) -> list[bool]:
        """Return for each unit whether its outputs depend on a trained weight."""
        reached, found = set(), []
        for unit in self.units:
            found.append(not reached.isdisjoint(unit.inputs) or bool(base_layer.trained_variables(unit.layers)))
            reached.update(unit.outputs if found[-1] else ())
        return found

    def _trace(self, specs):
        """Trace all units, and return their `Flops` and the specs of all tensors."""
        values, known, flops = {number: (spec, None) for number, spec in enumerate(specs)}, {}, []
        self._unmasked.clear()
        for index, unit in enumerate(self.units):
            read = [(values[number][0], None if number in self._unmasked else values[number][1])
                    for number in unit.inputs]
            found, outputs, unmasked = _trace_once(known, unit, read)
            values.update(zip(unit.outputs, outputs))
            for place in unmasked:
                self._unmasked.setdefault(unit.inputs[place], index)
            flops.append(found)
        return flops, values

    def _leave_out(self, absent):
        """Drop the outputs that layers return as None."""
        makers = [unit.name for unit in self.units if not absent.isdisjoint(set(unit.outputs) & set(self._outputs))]
        if makers:
            raise ValueError(f'Layer {makers[0]!r} returns None for an output of model {self.model.name!r}. Leave it '
                             "out of the model's outputs.")
        self.units = [unit.without(absent) for unit in self.units]  # Keras shows them as symbolic tensors


def _spec_of(tensor):
    return None if tensor is None else tf.TensorSpec(tensor.shape, tensor.dtype)


def _trace_once(known, unit, inputs):
    key = (describe(unit) or id(unit), str(inputs))
    if key not in known:
        known[key] = _trace_or_guess(unit, inputs)
    return known[key]


def _trace_or_guess(unit, inputs):
    """Trace a unit, or guess its `Flops` if that fails."""
    try:
        return _trace(unit, inputs)
    except TypeError:  # Python code in the unit needs sizes that may be unknown
        if all(spec is None or spec.shape.is_fully_defined() for spec, _ in inputs):
            raise
        weights = base_layer.trained_variables(unit.layers)
        outputs = [(tf.TensorSpec([1, *spec.shape[1:]], spec.dtype), None) for spec in unit.specs]
        return layer_analysis.Flops(2 * _num_values(weights), 0), outputs, []  # one multiply-add per trained parameter


def _num_values(weights):
    return sum(math.prod(weight.shape) for weight in weights)


def describe(unit: model_units.Unit) -> str | None:
    """Return a text that is equal for units that differ only in weights. Return None if a layer has no config."""
    try:
        config = {name: value for name, value in unit.layer.get_config().items() if name != 'name'}
    except Exception:  # `get_config` may fail in any way
        return None
    variables = [(variable.shape, variable.dtype, variable.trainable) for variable in unit.variables]
    return str((type(unit.layer), config, variables, unit.specs))


def _trace(unit, inputs):
    """Return the `Flops` of a unit, its output specs, and the indices of inputs whose Keras masks it removes."""
    unmasked = []

    def with_masks(arguments, outputs):
        _require_dense(unit, outputs)
        unmasked.extend(place for place, (tensor, (_, mask)) in enumerate(zip(arguments, inputs))
                        if mask is not None and masking.get_keras_mask(tensor) is None)
        return [(tensor, masking.get_keras_mask(tensor)) for tensor in outputs]

    concrete = _concrete(unit, inputs, True, with_masks)
    outputs = tf.nest.map_structure(_spec_of, concrete.structured_outputs)
    return layer_analysis.count_flops(concrete.graph), outputs, unmasked


def _require_dense(unit, outputs):
    if not all(tensor is None or isinstance(tensor, tf.Tensor) for tensor in outputs):
        raise ValueError(f'Layer {unit.name!r} makes {[type(tensor).__name__ for tensor in outputs]}, but only dense '
                         'tensors go from partition to partition. Give the layer sparse=False or ragged=False.')
