"""The cut of a flattened model into stages."""

from collections.abc import Container
from typing import NamedTuple

import keras
import tensorflow as tf

from lingpipe.devices import variable_placement
from lingpipe.keras_graph import model_units
from lingpipe.layers import base_layer
from lingpipe.stages import random_seeds


class Segment:
    """One layer call of a stage, as a function from a list of tensors to a list of tensors.

    Args:
        before, after: numbers of the input and output tensors, as in `FlatModel`. An output may be an input.
        unmasked: numbers of the inputs that lost their Keras masks in an earlier stage.
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
        values = [tf.identity(value) if without else value for value, without in zip(values, self._is_unmasked)]
        made = self._unit([values[place] for place in self._arguments], training)
        self._require_as_in_training(made, training)
        values = [*values, *made]  # values that only pass through stay as they are, with their Keras masks
        return [values[place] for place in self._results]

    def _require_as_in_training(self, made, training):
        """Raise ValueError if an output is None now but was a tensor when the model was cut, or the reverse."""
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
    """Cut a list of units into stages. A value goes directly to the stages that read the value::

        units     a  b | c  d | e  f         sources of stage 2: (1, 0) from d, (0, 0) from a
                  +------------> e

    Args:
        ends: the index after the last unit of each stage, ascending.
        unmasked: dictionary from a value to the index of the first unit that removes its Keras mask.
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
    """Move the variables of each stage to the stage's device, in place. States of seed generators do not move."""
    places: dict[int, tuple[keras.Variable, str]] = {}
    for parts, device in zip(stage_parts, devices):
        stay = {id(state) for state in random_seeds.seed_generator_states(parts.layers)}
        for variable in (variable for layer in parts.layers for variable in layer.variables):
            if id(variable) not in stay:
                places.setdefault(id(variable), (variable, device))  # the first stage's device, if several have it
    for variable, device in places.values():
        place_variable(variable, device)


def place_variable(variable: keras.Variable, device: str) -> None:
    """Move a variable to a device, in place. Allocate a variable without a value there."""
    if variable_placement.is_allocated(variable):
        variable_placement.move(variable, device)
        return
    with variable_placement.creating_on(device):
        base_layer.allocate([variable])


def _segments(run, before, after, unmasked):
    # A segment returns only tensors that a later unit or another stage needs.
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
