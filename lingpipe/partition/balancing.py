"""What the fields of a pipeline ask of its cut: what to measure and estimate first, and then where it falls."""

from typing import Any, NamedTuple

import tensorflow as tf

from lingpipe.partition import layer_memory, memory_model, partition_table
from lingpipe.stages import micro_batches

# Adam's, the most common optimizer for networks that need a pipeline.
_DEFAULT_OPTIMIZER_SLOTS = 2


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


def cut(p, schedule, source, analyses, input_specs, device):
    """Cuts a stack of layers as its params say.

    Args:
        p: `GPipeLayer.Params()`.
        schedule: `Schedule` of a full batch.
        source: where the layers come from, such as `layer_sources.LayersOfParams`; asked only for what is to be measured: its
            `times(specs, device, cache_dir, analyses)` returns a `LayerTime` for each layer, its `memories(specs)` a `LayerMemory`,
            for a micro-batch of some specs.
        analyses: list of `LayerAnalysis`.
        input_specs: nest of `tf.TensorSpec` `[batch, ...]` of the input.
        device: name of the device to measure on.

    Returns:
        `Cut`.

    Raises:
        ValueError: no cut is possible, or a size that measuring needs is open.
    """
    times, memory = None, None
    if p.partition_by == 'time':
        specs = micro_batch_specs(input_specs, p.num_replicas * p.num_micro_batches, "partition_by='time'", p.batch_size)
        times = source.times(specs, device, p.profile_dir, analyses)
    if p.memory_limit is not None:
        specs = micro_batch_specs(input_specs, p.num_replicas * p.num_micro_batches, f'memory_limit={p.memory_limit}', p.batch_size)
        memory = _memory_model(p, schedule, source.memories(specs))
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
