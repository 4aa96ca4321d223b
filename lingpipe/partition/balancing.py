"""What the fields of a pipeline ask of its cut: what to measure and estimate first, and then where it falls."""

import functools
from typing import Any, NamedTuple

import tensorflow as tf

from lingpipe.partition import layer_memory, layer_profile, liveness, memory_model, partition_table
from lingpipe.stages import boundary, micro_batches

# Adam's, the most common optimizer for networks that need a pipeline.
_DEFAULT_OPTIMIZER_SLOTS = 2


class _UnitAsLayer:
    """A unit in the form in which layers are measured.

    Args:
        unit: `model_units.Unit`.
    """

    def __init__(self, unit):
        self._unit = unit
        self.variables = [variable for layer in unit.layers for variable in layer.variables]
        self.weights = [weight for layer in unit.layers for weight in layer.weights]
        self.trainable_variables = [variable for layer in unit.layers for variable in layer.trainable_variables]

    def __call__(self, inputs, training):
        """Runs the unit on a `Boundary`, which holds the Keras masks besides its inputs."""
        return self._unit(boundary.pack(inputs, boundary.list_structure(len(inputs.values))), training)


def profile_units(graph, input_specs, device, cache_dir=None):
    """Measures every unit of a model on a device, with copies of its weights there, one unit at a time.

    Args:
        graph: `keras_model.ModelGraph`.
        input_specs: nest of `tf.TensorSpec` `[micro_batch, ...]` that the model accepts, every dimension known.
        device: name of the device, a CPU or GPU.
        cache_dir: as in `layer_profile.profile_layers`.

    Returns:
        List of `layer_profile.LayerTime`, one a unit. Units that are equal but for their weights are measured once.
    """
    values, keys, jobs = _known_values(graph, input_specs), [], []
    for index, unit in enumerate(graph.units):
        inputs, outputs = _inputs(unit, values), [values[number][0] for number in unit.outputs]
        text = graph.describe_unit(unit) or f'unit {index} of a model that is made anew each time: {id(unit)}'
        keys.append(layer_profile.key(text, inputs, device))
        jobs.append(layer_profile.Job(functools.partial(_UnitAsLayer, unit), inputs, outputs))
    return layer_profile.measure(keys, jobs, device, cache_dir)


def unit_memories(graph, input_specs):
    """Measures the tensors of every unit of a model without allocating any.

    Args:
        graph: `keras_model.ModelGraph`.
        input_specs: nest of `tf.TensorSpec` `[micro_batch, ...]` that the model accepts, every dimension known.

    Returns:
        List of `layer_memory.LayerMemory`, one a unit, in which a shared layer's weights count at its first unit.
    """
    values, known, memories, passages = _known_values(graph, input_specs), {}, [], []
    for index, unit in enumerate(graph.units):
        inputs = _inputs(unit, values)
        key = (graph.describe_unit(unit) or id(unit), str(inputs))
        if key not in known:
            known[key] = layer_memory.measure(_UnitAsLayer(unit), inputs)[:2]
        trainable, others = graph.own_weights(index)
        memories.append(known[key][0]._replace(weights=liveness.size(trainable), state=liveness.size(others)))
        passages.append(known[key][1])
    names = [_names_with_masks(unit, values) for unit in graph.units]
    return layer_memory.count_once(memories, passages, names, [unit.outputs for unit in graph.units])


def _known_values(graph, input_specs):
    values = graph.value_specs(input_specs)
    for unit in graph.units:
        for number in unit.outputs:
            if not values[number][0].shape.is_fully_defined():
                raise ValueError(f'Layer {unit.name!r} makes a tensor of shape {values[number][0].shape}, whose size is not '
                                 "known before it runs: it cannot be measured. Set partition_by='flops' and memory_limit=None.")
    return values


def _inputs(unit, values):
    read = [values[number] for number in unit.inputs]
    return boundary.Boundary([spec for spec, _ in read], {place: mask for place, (_, mask) in enumerate(read) if mask is not None})


def _names_with_masks(unit, values):
    """Names what `_inputs` holds, in the order of its tensors: the values, then their masks."""
    return [*unit.inputs, *(('mask', number) for number in unit.inputs if values[number][1] is not None)]


class Cut(NamedTuple):
    """Where a stack of layers is cut, and what was found out for that.

    Attributes:
        ends: list of ascending end indices, one a stage.
        layer_times: list of `layer_profile.LayerTime`; None where nothing was measured.
        memory: `memory_model.MemoryModel`; None without a limit.
    """

    ends: list
    layer_times: Any
    memory: Any

    def describe(self, analyses, devices):
        """Returns the list of `Partition` on the given devices, one name a stage."""
        return partition_table.describe_partitions(analyses, self.ends, devices, self.layer_times, self.memory)


def cut(p, schedule, analyses, layer_params=None, input_specs=None, device=None, graph=None):
    """Cuts a stack of layers as its params say.

    Args:
        p: `GPipeLayer.Params()`.
        schedule: `Schedule` of a full batch.
        analyses: list of `LayerAnalysis`.
        layer_params: list of InstantiableParams of the layers; like the rest, only to measure time or estimate memory.
        input_specs: nest of `tf.TensorSpec` `[batch, ...]` of the input.
        device: name of the device to measure on.
        graph: `keras_model.ModelGraph` to cut in place of layers made from params.

    Returns:
        `Cut`.

    Raises:
        ValueError: no cut is possible, or a size that measuring needs is open.
    """
    times, memory = None, None
    if p.partition_by == 'time':
        specs = micro_batch_specs(input_specs, p.num_replicas * p.num_micro_batches, "partition_by='time'", p.batch_size)
        times = (layer_profile.profile_layers(layer_params, specs, device, p.profile_dir, analyses) if graph is None else
                 profile_units(graph, specs, device, p.profile_dir))
    if p.memory_limit is not None:
        specs = micro_batch_specs(input_specs, p.num_replicas * p.num_micro_batches, f'memory_limit={p.memory_limit}', p.batch_size)
        layers = layer_memory.layer_memories(layer_params, specs) if graph is None else unit_memories(graph, specs)
        memory = _memory_model(p, schedule, layers)
    return Cut(_ends(p, schedule, analyses, times, memory), times, memory)


def micro_batch_specs(input_specs, num_micro_batches, purpose, batch_size=None):
    """Returns the specs of the largest micro-batch.

    Args:
        input_specs: nest of `tf.TensorSpec` `[batch, ...]`.
        num_micro_batches: R M, those of all replicas.
        purpose: the field that needs them, for the message.
        batch_size: rows of the batch, where `input_specs` leave them open.

    Raises:
        ValueError: when a size is open.
    """
    if batch_size is not None:
        input_specs = tf.nest.map_structure(
            lambda spec: tf.TensorSpec([spec.shape[0] or batch_size, *spec.shape[1:]], spec.dtype), input_specs)
    specs = tf.nest.flatten(input_specs)
    if not all(spec.shape.is_fully_defined() for spec in specs):
        raise ValueError(
            f'{purpose} needs every size of the input, the batch size included, and got {[tuple(s.shape) for s in specs]}. '
            'Set batch_size to the rows of a training batch, and give the inputs of the model all their other sizes, or set '
            "partition_by='flops' and memory_limit=None.")
    rows = -(-specs[0].shape[0] // micro_batches.count(input_specs, num_micro_batches))
    return tf.nest.map_structure(lambda spec: tf.TensorSpec([rows, *spec.shape[1:]], spec.dtype), input_specs)


def _memory_model(p, schedule, layers):
    num_slots = _DEFAULT_OPTIMIZER_SLOTS if p.num_optimizer_slots is None else p.num_optimizer_slots
    live = layer_memory.live_micro_batches(schedule)
    return memory_model.MemoryModel(layers, live, p.recompute, num_slots / p.num_replicas)


def _ends(p, schedule, analyses, times, memory):
    return partition_table.partition_ends(
        analyses, schedule.num_stages, p.partition_by, times, partition_table.extra_forwards(schedule, p.recompute),
        memory, p.memory_limit, num_devices=p.num_partitions)
