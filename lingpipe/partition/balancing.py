"""The cut of a pipeline's layers into partitions by its params: what to measure, and where to cut."""

import collections
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from lingpipe import hyperparams, schedules
from lingpipe.devices import device_kinds
from lingpipe.partition import (
    accelerators,
    exact_cut,
    layer_analysis,
    layer_memory,
    layer_profile,
    memory_model,
    stage_costs,
    step_time_cut,
    tensor_sizes,
)
from lingpipe.stages import micro_batches

# Forward passes that are repeated; 'layer' finds the inputs of all layers of a stage, then each layer's internals.
# 'selective' counts as if it used all the time that it may. If a backward action directly follows its own forward
# action, the first repetition is not needed.
_EXTRA_FORWARDS = {'none': 0, 'selective': stage_costs.MOST_SELECTIVE, 'stage': 1, 'layer': 2}
_SAVED_FORWARDS = {'none': 0, 'selective': stage_costs.MOST_SELECTIVE, 'stage': 1, 'layer': 1}

AUTO = 'auto'
# Ways to cut that measure layers.
BY_TIME = ('time', 'step_time')

# Adam's, the most common optimizer for networks that need a pipeline.
_DEFAULT_OPTIMIZER_SLOTS = 2


class Partition(NamedTuple):
    """One contiguous run of layers, its device and its costs."""

    layer_names: list
    device: str
    num_parameters: int
    flops: int  # floating-point operations of the forward pass of one example
    seconds: float | None = None  # forward and backward pass of one micro-batch; None if it was not measured
    memory: int | None = None  # estimate of the bytes that it needs; None if none was made
    num_frozen: int = 0


def extra_forwards(schedule: schedules.Schedule, recompute: str) -> list[float]:
    """Return how many forward passes each stage repeats per micro-batch on average, which makes the stage slower.

    Less is recomputed if a backward action directly follows its own forward action: for all micro-batches in 1F1B's
    last stage, and for one in every stage of GPipe.
    """
    kept = collections.Counter(action.stage for action in schedule.backwards_after_own_forward())
    return [_EXTRA_FORWARDS[recompute] - _SAVED_FORWARDS[recompute] * kept[stage] / schedule.num_micro_batches
            for stage in range(schedule.num_stages)]


def layer_costs(analyses: list[layer_analysis.LayerAnalysis], partition_by: str,
                layer_times: list[layer_profile.LayerTime] | None = None,
                extra_forwards: Sequence[float] = (0,)) -> np.ndarray:
    """Return what the cut balances, `[partitions, layers]`: seconds, floating-point operations or parameters.

    Args:
        layer_times: measured times; None: times follow from floating-point operations.
        extra_forwards: for each partition, the number of forward passes that it repeats for a micro-batch.
    """
    if partition_by == 'params':
        return np.array([[layer.num_parameters for layer in analyses]])
    is_timed = partition_by in BY_TIME and layer_times is not None
    forward, backward, _ = np.array(layer_times if is_timed else stage_costs.times_by_flops(analyses)).T
    has_backward = np.array([layer.has_backward for layer in analyses])
    return (1 + np.array(extra_forwards)[:, np.newaxis] * has_backward) * forward + backward * has_backward


def partition_ends(analyses: list[layer_analysis.LayerAnalysis], num_partitions: int, partition_by: Any,
                   layer_times: list[layer_profile.LayerTime] | None = None, extra_forwards: Sequence[float] = (0,),
                   memory: Any = None, memory_limit: float | None = None,
                   devices: Sequence[int] | None = None) -> list[int]:
    """Cut analysed layers into partitions that are as even as possible, and return ascending end indices.

    Args:
        num_partitions: number of stages, on all devices.
        partition_by: 'flops', 'time', 'step_time' (here like 'time'), 'params', or a list of end indices.
        memory_limit: bytes of one device, which a given list of end indices must keep to as well; None: no limit.

    Raises:
        ValueError: no cut is possible, or the given cut is not possible.
    """
    if isinstance(partition_by, str):
        costs = layer_costs(analyses, partition_by, layer_times, extra_forwards)
        return exact_cut.balanced_partition_ends(costs, num_partitions, memory, memory_limit, devices)
    ends = exact_cut.validate_partition_ends(partition_by, len(analyses), num_partitions)
    if memory_limit is not None:
        memory_model.MemoryBudget(memory, memory_limit, len(analyses), devices or range(num_partitions)).require(ends)
    return ends


class _Memory(NamedTuple):
    """The memory limit that a cut keeps to, and what a micro-batch takes in each layer; both None without a limit."""

    limit: float | None
    layers: Any = None  # list of `layer_memory.LayerMemory`


def _memory_of(p: hyperparams.Params, source: Any, input_specs: Any, device: str) -> _Memory:
    """Return the `_Memory` of a cut, measured if `p.memory_limit` is set or recomputation depends on GPU memory."""
    purpose, limit = f'memory_limit={p.memory_limit}', p.memory_limit
    if limit is None and p.recompute == AUTO and device_kinds.kind_of(device) != 'CPU':
        limit = accelerators.memory_of_gpus()
    if limit is None:
        return _Memory(None)
    try:
        specs = micro_batch_specs(input_specs, p.num_replicas * p.num_micro_batches, purpose, p.batch_size)
    except ValueError:
        if p.memory_limit is not None:
            raise
        return _Memory(None)  # a batch of unknown size has no estimate
    return _Memory(limit, source.memories(specs))


class Recompute(NamedTuple):
    """A value of the field `recompute` with its memory limit."""

    value: str
    memory: _Memory


def _recompute_of(p: hyperparams.Params, schedule: schedules.Schedule,
                  analyses: list[layer_analysis.LayerAnalysis], memory: _Memory, device: str) -> Recompute:
    """Return `recompute`; if it is 'auto', the least recomputation with which each device holds its partition."""
    if p.recompute != AUTO:
        return Recompute(p.recompute, memory)
    if memory.limit is None and device_kinds.kind_of(device) == 'CPU':
        return Recompute('none', memory)
    if memory.limit is None:
        return Recompute('stage', memory)  # the memory or batch_size is not known
    for value in ('none', 'stage') if schedule.splits_backward else ('none', 'stage', 'layer'):
        try:
            partition_ends(analyses, schedule.num_stages, p.partition_by, None, extra_forwards(schedule, value),
                           _memory_model(p, schedule, memory.layers, value), memory.limit, schedule.stage_devices)
            return Recompute(value, memory)
        except ValueError:  # no cut fits
            continue
    # The estimate refuses only what the user has limited.
    return Recompute(value, memory if p.memory_limit else _Memory(None))


class Cut(NamedTuple):
    """Where a stack of layers is cut, and the measurements behind it."""

    ends: list  # ascending end indices, one per stage
    layer_times: Any = None  # list of `layer_profile.LayerTime`; None if nothing was measured
    memory: Any = None  # `memory_model.MemoryModel`; None without a limit
    costs: Any = None  # `StageCostModel`, in seconds if layers were measured, else in floating-point operations
    recompute: Recompute = Recompute('none', _Memory(None))  # what partitions recompute

    def describe(self, analyses: list[layer_analysis.LayerAnalysis], devices: list[str]) -> list[Partition]:
        """Return the list of `Partition` on the given devices, one name per stage."""
        memory = [None] * len(self.ends) if self.memory is None else self.memory.of_cut(self.ends).tolist()
        return [
            Partition(
                [layer.name for layer in analyses[start:end]], device,
                sum(layer.num_parameters for layer in analyses[start:end]),
                sum(layer.flops.total for layer in analyses[start:end]),
                None if self.layer_times is None else sum(time.seconds for time in self.layer_times[start:end]),
                num_bytes, sum(layer.num_frozen for layer in analyses[start:end]))
            for start, end, device, num_bytes in zip([0, *self.ends], self.ends, devices, memory)]

    def most_kept_bytes(self, schedule: schedules.Schedule, memory_limit: float | None) -> list[float | None]:
        """Return, for each stage, the bytes that a micro-batch may keep besides its inputs; None: no limit.

        The estimate contains one micro-batch with everything that its backward pass reads. The rest of a device's limit
        is divided equally between all other micro-batches that wait there for their backward pass.
        """
        if memory_limit is None:
            return [None] * len(self.ends)
        devices = np.array(schedule.stage_devices)
        waiting = np.array(layer_memory.live_micro_batches(schedule)) - 1
        free = memory_limit - np.bincount(devices, self.memory.of_cut(self.ends))
        return [float(max(share, 0.0)) for share in (free / np.maximum(np.bincount(devices, waiting), 1))[devices]]


def cut(p: hyperparams.Params, schedule: schedules.Schedule, source: Any, analyses: list[layer_analysis.LayerAnalysis],
        input_specs: Any, devices: Sequence[str]) -> Cut:
    """Cut a stack of layers according to its params.

    Args:
        source: where the layers come from, such as `layer_sources.LayersOfParams`; used only for measuring.
        input_specs: nest of `tf.TensorSpec` `[batch, ...]` of the input.
        devices: names of the devices of one replica; layers are measured on the first, transfers from it to the second.
            With recompute='auto' partitions recompute as little as `memory_limit`, or the memory of the GPUs, allows:
            nothing on CPUs without a limit; 'stage' where the limit or the rows of a batch are not known.

    Raises:
        ValueError: no cut is possible, or a size that measuring needs is unknown.
    """
    times = transfers = None
    num_micro_batches = p.num_replicas * p.num_micro_batches
    if p.partition_by in BY_TIME:
        specs = micro_batch_specs(input_specs, num_micro_batches, f'partition_by={p.partition_by!r}', p.batch_size)
        times = source.times(specs, devices[0], p.profile_dir, analyses)
        if p.partition_by == 'step_time':
            transfers = _transfers(analyses, specs, devices)
    memory = _memory_of(p, source, input_specs, devices[0])
    recompute = _recompute_of(p, schedule, analyses, memory, devices[0])
    limit, layers = recompute.memory
    model = None if layers is None else _memory_model(p, schedule, layers, recompute.value)
    costs = stage_costs.StageCostModel(times or stage_costs.times_by_flops(analyses), recompute.value, transfers)
    ends = best_ends(schedule, analyses, p.partition_by, times, recompute.value, costs, model, limit)
    return Cut(ends, times, model, costs, recompute)


def best_ends(schedule: schedules.Schedule, analyses: list[layer_analysis.LayerAnalysis], partition_by: Any,
              layer_times: list[layer_profile.LayerTime] | None, recompute: str, costs: stage_costs.StageCostModel,
              memory: memory_model.MemoryModel | None, memory_limit: float | None) -> list[int]:
    """Return the end indices of `partition_ends`; with 'step_time', those with the shortest simulated step."""
    devices = schedule.stage_devices
    ends = partition_ends(analyses, schedule.num_stages, partition_by, layer_times,
                          extra_forwards(schedule, recompute), memory, memory_limit, devices)
    if partition_by != 'step_time':
        return ends
    fits = None
    if memory_limit is not None:
        fits = memory_model.MemoryBudget(memory, memory_limit, costs.num_layers, devices).fitting
    return step_time_cut.fastest_ends(schedule, costs, ends, fits)


def _transfers(analyses, micro_batch, devices):
    """Return the seconds that each layer's outputs for a micro-batch take from one device to the next."""
    rows = tf.nest.flatten(micro_batch)[0].shape[0]
    seconds = layer_profile.seconds_a_byte(devices[0], devices[1]) if len(devices) > 1 else 0.0
    return [seconds * sum(tensor_sizes.plain_size([rows, *spec.shape[1:]], spec.dtype)
                          for spec in tf.nest.flatten(layer.outputs)) for layer in analyses]


def micro_batch_specs(input_specs: Any, num_micro_batches: int, purpose: str, batch_size: int | None = None) -> Any:
    """Return the specs of the largest micro-batch.

    Args:
        input_specs: nest of `tf.TensorSpec` `[batch, ...]`.
        num_micro_batches: number of micro-batches of all replicas.
        batch_size: rows of the batch, if `input_specs` do not say.

    Raises:
        ValueError: a size is unknown.
    """
    if batch_size is not None:
        input_specs = tf.nest.map_structure(
            lambda spec: tf.TensorSpec([spec.shape[0] or batch_size, *spec.shape[1:]], spec.dtype), input_specs)
    specs = tf.nest.flatten(input_specs)
    if not all(spec.shape.is_fully_defined() for spec in specs):
        raise ValueError(
            f'{purpose} needs every size of the input, the batch size included, and got '
            f'{[tuple(s.shape) for s in specs]}. Set batch_size to the rows of a training batch, and give the inputs '
            "of the model all their other sizes, or set partition_by='flops' and memory_limit=None.")
    rows = -(-specs[0].shape[0] // micro_batches.count(input_specs, num_micro_batches))
    return tf.nest.map_structure(lambda spec: tf.TensorSpec([rows, *spec.shape[1:]], spec.dtype), input_specs)


def _memory_model(p, schedule, layers, recompute):
    num_slots = _DEFAULT_OPTIMIZER_SLOTS if p.num_optimizer_slots is None else p.num_optimizer_slots
    live = layer_memory.live_micro_batches(schedule)
    return memory_model.MemoryModel(layers, live, recompute, num_slots / p.num_replicas)
