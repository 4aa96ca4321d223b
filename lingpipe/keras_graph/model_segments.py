"""A flattened model cut into stages: the costs of its units, the units of each stage, and what stages read."""

import functools
from collections.abc import Container
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from lingpipe.devices import variable_placement
from lingpipe.keras_graph import keras_model, model_units
from lingpipe.layers import base_layer
from lingpipe.partition import layer_kernels, layer_memory, layer_profile, tensor_sizes
from lingpipe.stages import boundary, random_seeds


class Segment:
    """One unit as a function between two lists of tensors, so that the segments of a stage can run one after the other.

    Args:
        before: numbers of the input values.
        after: numbers of the output values, which are inputs or results of the unit.
        unmasked: those of the input values whose Keras masks a unit of an earlier stage has taken off.
    """

    def __init__(self, unit: model_units.Unit, before: list[int], after: list[int],
                 unmasked: Container[int] = ()) -> None:
        self.layers, self.call_index, self.position = unit.layers, unit.call_index, unit.position
        self._unit = unit
        places = {value: place for place, value in enumerate([*before, *unit.outputs])}
        self._arguments = [places[value] for value in unit.inputs]
        self._results = [places[value] for value in after]
        self._is_unmasked = [value in unmasked for value in before]

    def __call__(self, values: list, training: bool) -> list:
        """Run the unit; values that only pass through stay as they are, with their Keras masks."""
        values = [tf.identity(value) if without else value for value, without in zip(values, self._is_unmasked)]
        made = self._unit([values[place] for place in self._arguments], training)
        self._require_as_in_training(made, training)
        values = [*values, *made]
        return [values[place] for place in self._results]

    def _require_as_in_training(self, made, training):
        """Raise ValueError unless the same outputs are None as in training mode, in which the model was cut."""
        if self.layers and (len(made) != len(self._unit.outputs) or any(value is None for value in made)):
            raise ValueError(
                f'Layer {self._unit.name!r} returns None for other outputs with training={training} than when the '
                'model was cut. Let it return tensors there, of zeros if need be.')


class StageParts(NamedTuple):
    """One stage of a cut model."""

    segments: list
    # (producer, position) of each entry of the first segment's input: an output of the stage `producer`, or one of the
    # model's flat inputs if `producer` is -1
    sources: list

    @property
    def layers(self) -> list[keras.layers.Layer]:
        """List of the Keras layers of the stage, each once."""
        layers = [layer for segment in self.segments for layer in segment.layers]
        return list({id(layer): layer for layer in layers}.values())


def cut(units: list[model_units.Unit], outputs: list[int], ends: list[int],
        unmasked: dict[int, int]) -> list[StageParts]:
    """Cut a list of units into stages; a value that skips stages goes directly from producer to consumers::

        units     a  b | c  d | e  f         sources of stage 2: (1, 0) from d, (0, 0) from a
                  +------------> e

    Args:
        ends: ascending end indices, the last of which is the number of units.
        unmasked: dictionary from a value to the index of the first unit that takes its Keras mask off.
    """
    starts = [0, *ends[:-1]]
    runs = [units[start:end] for start, end in zip(starts, ends)]
    owners = {value: index for index, run in enumerate(runs) for unit in run for value in unit.outputs}
    reads = [_unique(value for unit in run for value in unit.inputs) for run in runs]
    reads[-1] = _unique([*reads[-1], *outputs])
    taken = [[value for value in read if owners.get(value) != index] for index, read in enumerate(reads)]
    wanted = {value for values in taken for value in values}
    handed = [[value for unit in run for value in unit.outputs if value in wanted] for run in runs[:-1]] + [outputs]
    without = [{value for value, unit in unmasked.items() if unit < start} for start in starts]
    return [StageParts(_segments(run, before, after, lost), [_source(value, owners, handed) for value in before])
            for run, before, after, lost in zip(runs, taken, handed, without)]


def move_variables(stage_parts: list[StageParts], devices: list[str]) -> None:
    """Move the variables of each stage to its device, in place: the model and its pipeline keep sharing them.

    A variable of several stages goes to the first of them. The states of seed generators stay where they are.
    """
    places: dict[int, tuple[keras.Variable, str]] = {}
    for parts, device in zip(stage_parts, devices):
        stay = {id(state) for state in random_seeds.seed_generator_states(parts.layers)}
        for variable in (variable for layer in parts.layers for variable in layer.variables):
            if id(variable) not in stay:
                places.setdefault(id(variable), (variable, device))
    for variable, device in places.values():
        place_variable(variable, device)


def place_variable(variable: keras.Variable, device: str) -> None:
    """Move a variable to a device, in place; a variable without a value is allocated there."""
    if variable_placement.is_allocated(variable):
        variable_placement.move(variable, device)
        return
    with variable_placement.creating_on(device):
        base_layer.allocate([variable])


def _segments(run, before, after, unmasked):
    """Return the segments of a run; between units they pass only what a later unit or another stage still needs."""
    last_reader = dict.fromkeys(after, len(run))
    for place, unit in enumerate(run):
        for value in unit.inputs:
            last_reader[value] = max(place, last_reader.get(value, 0))
    segments, live = [], before
    for place, unit in enumerate(run):
        kept = [value for value in [*live, *unit.outputs] if last_reader.get(value, -1) > place]
        segments.append(Segment(unit, live, kept if unit is not run[-1] else after, () if segments else unmasked))
        live = kept
    return segments


def _source(value, owners, handed):
    owner = owners.get(value, -1)
    return (owner, value if owner < 0 else handed[owner].index(value))


def _unique(values):
    return list(dict.fromkeys(values))


class _UnitAsLayer:
    """A unit with the interface of a layer to be measured."""

    def __init__(self, unit):
        self._unit, self.variables = unit, unit.variables
        self.weights = [weight for layer in unit.layers for weight in layer.weights]

    def __call__(self, inputs, training):
        """Run the unit on a `Boundary`, which holds its inputs and their Keras masks."""
        return self._unit(boundary.pack(inputs, boundary.structure_of(inputs.values)), training)


def times(graph: keras_model.ModelGraph, input_specs: Any, device: str,
          cache_dir: str | None = None) -> list[layer_profile.LayerTime]:
    """Measure every unit of a model, with copies of its weights on the device; see `layer_profile.profile_layers`.

    Units that differ only in their weights are measured once.
    """
    values, jobs = _known_values(graph, input_specs), []
    for index, (unit, has_backward) in enumerate(zip(graph.units, graph.units_with_backward())):
        inputs, outputs = _inputs(unit, values), [values[number][0] for number in unit.outputs]
        text = keras_model.describe(unit) or f'unit {index} of a model that is made anew each time: {id(unit)}'
        jobs.append(layer_profile.Job(text, functools.partial(_UnitAsLayer, unit), inputs, outputs, has_backward))
    return layer_profile.measure(jobs, device, cache_dir)


def memories(graph: keras_model.ModelGraph, input_specs: Any,
             tensor_size: tensor_sizes.TensorSize = tensor_sizes.plain_size) -> list[layer_memory.LayerMemory]:
    """Compute the tensor sizes of every unit; a shared layer's weights count at its first unit."""
    values, sizes, passages = _known_values(graph, input_specs), [], []
    found = _look_at_each(graph, values, functools.partial(layer_memory.measure, tensor_size=tensor_size))
    for index, (memory, passage, _) in enumerate(found):
        trainable, others = graph.own_weights(index)
        sizes.append(memory._replace(
            weights=layer_memory.size(trainable, tensor_size), state=layer_memory.size(others, tensor_size)))
        passages.append(passage)
    names = [_names_with_masks(unit, values) for unit in graph.units]
    return layer_memory.count_once(sizes, passages, names, [unit.outputs for unit in graph.units])


def kernels(graph: keras_model.ModelGraph, input_specs: Any) -> list[layer_kernels.LayerKernels]:
    """Find the kernels that a GPU runs for every unit of a model."""
    return [found for found, _ in _look_at_each(graph, _known_values(graph, input_specs), layer_kernels.find)]


def _look_at_each(graph, values, look):
    """Call `look` with each unit as a layer, its inputs, and whether it has a backward pass; once for equal units."""
    known, found = {}, []
    for unit, has_backward in zip(graph.units, graph.units_with_backward()):
        inputs = _inputs(unit, values)
        key = (keras_model.describe(unit) or id(unit), str(inputs), has_backward)
        if key not in known:
            known[key] = look(_UnitAsLayer(unit), inputs, has_backward=has_backward)
        found.append(known[key])
    return found


def _known_values(graph, input_specs):
    values = graph.value_specs(input_specs)
    for unit in graph.units:
        for number in unit.outputs:
            if not values[number][0].shape.is_fully_defined():
                raise ValueError(
                    f'Layer {unit.name!r} makes a tensor of shape {values[number][0].shape}, whose size is not known '
                    "before it runs: it cannot be measured. Set partition_by='flops' and memory_limit=None.")
    return values


def _inputs(unit, values):
    read = [values[number] for number in unit.inputs]
    masks = {place: mask for place, (_, mask) in enumerate(read) if mask is not None}
    return boundary.Boundary([spec for spec, _ in read], masks)


def _names_with_masks(unit, values):
    """Name what `_inputs` holds, in the order of its tensors: the values, then their masks."""
    return [*unit.inputs, *(('mask', number) for number in unit.inputs if values[number][1] is not None)]
