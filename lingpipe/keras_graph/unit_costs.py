"""Measured times and computed sizes of the units of a Keras model. Units are layer calls.

`input_specs` is a nest of `tf.TensorSpec` `[micro_batch, ...]` that fits the model. All dimensions must be known.
"""

import functools
from typing import Any

from lingpipe.keras_graph import keras_model
from lingpipe.partition import layer_kernels, layer_memory, layer_profile, tensor_sizes
from lingpipe.stages import boundary


class _UnitAsLayer:
    """A unit with the interface of a layer, for measurements."""

    def __init__(self, unit):
        self._unit, self.variables = unit, unit.variables
        self.weights = [weight for layer in unit.layers for weight in layer.weights]

    def __call__(self, inputs, training):
        """Run the unit on a `Boundary`, which holds inputs and Keras masks."""
        return self._unit(boundary.pack(inputs, boundary.structure_of(inputs.values)), training)


def times(graph: keras_model.ModelGraph, input_specs: Any, device: str,
          cache_dir: str | None = None) -> list[layer_profile.LayerTime]:
    """Measure the time of every unit on a device, with copies of the weights.

    For `cache_dir`, see `layer_profile.profile_layers`.
    """
    values, jobs = _known_values(graph, input_specs), []
    for index, (unit, has_backward) in enumerate(zip(graph.units, graph.units_with_backward())):
        inputs, outputs = _inputs(unit, values), [values[number][0] for number in unit.outputs]
        text = keras_model.describe(unit) or f'unit {index} of a model that is made anew each time: {id(unit)}'
        jobs.append(layer_profile.Job(text, functools.partial(_UnitAsLayer, unit), inputs, outputs, has_backward))
    return layer_profile.measure(jobs, device, cache_dir)


def memories(graph: keras_model.ModelGraph, input_specs: Any,
             tensor_size: tensor_sizes.TensorSize = tensor_sizes.plain_size) -> list[layer_memory.LayerMemory]:
    """Return the `LayerMemory` of every unit. Weights of a shared layer count only in the layer's first call."""
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
    """Return the result of the function `look` for each unit."""
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
    """List names for a unit's input values, and then for their Keras masks."""
    return [*unit.inputs, *(('mask', number) for number in unit.inputs if values[number][1] is not None)]
