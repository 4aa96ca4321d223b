"""The cut of a pipeline's layers into partitions by its params: what to measure, and where to cut."""

import collections
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from lingpipe import hyperparams, schedules
from lingpipe.partition import (
    exact_cut,
    layer_analysis,
    layer_layout,
    layer_memory,
    layer_profile,
    memory_model,
    stage_costs,
    step_time_cut,
    tensor_sizes,
)
from lingpipe.stages import micro_batches

# Forward passes that are repeated; 'layer' finds the inputs of all layers of a stage, then each layer's internals.
# 'selective' counts as if it used all the time that it may. If a B directly follows its own F, the first repetition is
# not needed.
_EXTRA_FORWARDS = {'none': 0, 'selective': stage_costs.MOST_SELECTIVE, 'stage': 1, 'layer': 2}
_SAVED_FORWARDS = {'none': 0, 'selective': stage_costs.MOST_SELECTIVE, 'stage': 1, 'layer': 1}

# Ways to cut that measure layers.
BY_TIME = ('time', 'step_time')

# Adam's, the most common optimizer for networks that need a pipeline.
_DEFAULT_OPTIMIZER_SLOTS = 2


class Partition(NamedTuple):
    """One contiguous run of layers, its device and its costs.

    Attributes:
        layer_names: names of its layers.
        device: name of its device.
        num_parameters: number of trainable parameters.
        flops: floating-point operations of the forward pass of one example.
        seconds: measured time of the forward and backward pass of one micro-batch; None if it was not measured.
        memory: estimate of the bytes that it needs; None if none was made.
        num_frozen: number of frozen parameters.
    """

    layer_names: list
    device: str
    num_parameters: int
    flops: int
    seconds: float | None = None
    memory: int | None = None
    num_frozen: int = 0


def extra_forwards(schedule: schedules.Schedule, recompute: str) -> list[float]:
    """Counts the forward passes that each stage repeats, which may make it slower than its neighbours.

    Args:
        schedule: `Schedule`. Less is recomputed if a B directly follows its own F, as for all micro-batches in 1F1B's
            last stage, and for one micro-batch in every stage of GPipe.
        recompute: 'none', 'selective', 'stage' or 'layer'.

    Returns:
        List of numbers, one per stage: the mean over the micro-batches.
    """
    kept = collections.Counter(action.stage for action in schedule.backwards_after_own_forward())
    return [_EXTRA_FORWARDS[recompute] - _SAVED_FORWARDS[recompute] * kept[stage] / schedule.num_micro_batches
            for stage in range(schedule.num_stages)]


def layer_costs(analyses: list[layer_analysis.LayerAnalysis], partition_by: str,
                layer_times: list[layer_profile.LayerTime] | None = None,
                extra_forwards: Sequence[float] = (0,)) -> np.ndarray:
    """Returns the costs that the cut balances.

    Args:
        analyses: list of `LayerAnalysis`.
        partition_by: 'flops', 'time', 'step_time' or 'params'.
        layer_times: list of `layer_profile.LayerTime`; None: times follow from floating-point operations.
        extra_forwards: for each partition, the number of forward passes that it repeats for a micro-batch.

    Returns:
        Array `[partitions, layers]`: seconds, floating-point operations or parameters.
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
    """Cuts analysed layers into partitions that are as even as possible.

    Args:
        analyses: list of `LayerAnalysis`.
        num_partitions: K; K V with V stages on each device.
        partition_by: 'flops', 'time', 'step_time' (here the same), 'params', a list of end indices, or a layout (see
            `layer_layout`).
        layer_times: see `layer_costs`.
        extra_forwards: see `layer_costs`.
        memory: see `exact_cut.balanced_partition_ends`.
        memory_limit: bytes of one device, which a given list of end indices must keep to as well; None: no limit.
        devices: see `exact_cut.balanced_partition_ends`.

    Returns:
        List of ascending end indices.

    Raises:
        ValueError: no cut is possible, or the given cut is not possible.
    """
    if layer_layout.is_layout(partition_by):
        partition_by = layer_layout.partition_ends(partition_by, len(analyses), num_partitions)
    if isinstance(partition_by, str):
        costs = layer_costs(analyses, partition_by, layer_times, extra_forwards)
        return exact_cut.balanced_partition_ends(costs, num_partitions, memory, memory_limit, devices)
    ends = exact_cut.validate_partition_ends(partition_by, len(analyses), num_partitions)
    if memory_limit is not None:
        memory_model.MemoryBudget(memory, memory_limit, len(analyses), devices or range(num_partitions)).require(ends)
    return ends


def describe_partitions(analyses: list[layer_analysis.LayerAnalysis], ends: list[int], devices: list[str],
                        layer_times: list[layer_profile.LayerTime] | None = None,
                        memory: memory_model.MemoryModel | None = None) -> list[Partition]:
    """Summarises each partition.

    Args:
        analyses: list of `LayerAnalysis`.
        ends: list of end indices.
        devices: list of device names, one per partition.
        layer_times: list of `layer_profile.LayerTime`, or None.
        memory: `memory_model.MemoryModel`, or None.

    Returns:
        List of `Partition`.
    """
    starts = [0, *ends[:-1]]
    needed = [None] * len(ends)
    if memory is not None:
        needed = memory(np.arange(len(ends)), np.array(starts), np.array(ends)).tolist()
    return [
        Partition(
            [layer.name for layer in analyses[start:end]], device,
            sum(layer.num_parameters for layer in analyses[start:end]),
            sum(layer.flops.total for layer in analyses[start:end]),
            None if layer_times is None else sum(time.seconds for time in layer_times[start:end]), num_bytes,
            sum(layer.num_frozen for layer in analyses[start:end]))
        for start, end, device, num_bytes in zip(starts, ends, devices, needed)]


class Cut(NamedTuple):
    """Where a stack of layers is cut, and the measurements behind it.

    Attributes:
        ends: list of ascending end indices, one per stage.
        layer_times: list of `layer_profile.LayerTime`; None if nothing was measured.
        memory: `memory_model.MemoryModel`; None without a limit.
        costs: `stage_costs.StageCostModel`, in seconds if layers were measured, else in floating-point operations.
    """

    ends: list
    layer_times: Any
    memory: Any
    costs: Any

    def describe(self, analyses: list[layer_analysis.LayerAnalysis], devices: list[str]) -> list[Partition]:
        """Returns the list of `Partition` on the given devices, one name per stage."""
        return describe_partitions(analyses, self.ends, devices, self.layer_times, self.memory)

    def most_kept_bytes(self, schedule: schedules.Schedule, memory_limit: float | None) -> list[float | None]:
        """Divides the rest of a memory limit between micro-batches, for recompute='selective'.

        The estimate contains one micro-batch with everything that its backward pass reads. The rest of a device's limit
        is divided equally between all other micro-batches that wait there for their backward pass.

        Args:
            schedule: `Schedule`.
            memory_limit: bytes of one device; None: no limit.

        Returns:
            For each stage, the bytes that a micro-batch may keep in addition to the stage's inputs; None: no limit.
        """
        if memory_limit is None:
            return [None] * len(self.ends)
        needed = self.memory(np.arange(len(self.ends)), np.array([0, *self.ends[:-1]]), np.array(self.ends))
        devices = [schedule.device_of(stage) for stage in range(len(self.ends))]
        waiting = np.array(layer_memory.live_micro_batches(schedule)) - 1
        free = memory_limit - np.bincount(devices, needed)
        return [float(max(share, 0.0)) for share in (free / np.maximum(np.bincount(devices, waiting), 1))[devices]]


def cut(p: hyperparams.Params, schedule: schedules.Schedule, source: Any, analyses: list[layer_analysis.LayerAnalysis],
        input_specs: Any, devices: Sequence[str]) -> Cut:
    """Cuts a stack of layers according to its params.

    Args:
        p: `GPipeLayer.Params()`.
        schedule: `Schedule` of a full batch.
        source: where the layers come from, such as `layer_sources.LayersOfParams`. It is used only for measuring: its
            `times(specs, device, cache_dir, analyses)` returns a `LayerTime` for each layer, its `memories(specs)` a
            `LayerMemory`, for a micro-batch of some specs.
        analyses: list of `LayerAnalysis`.
        input_specs: nest of `tf.TensorSpec` `[batch, ...]` of the input.
        devices: names of the devices of one replica; layers are measured on the first, transfers from it to the second.

    Returns:
        `Cut`.

    Raises:
        ValueError: no cut is possible, or a size that measuring needs is unknown.
    """
    times = transfers = memory = None
    if p.partition_by in BY_TIME:
        specs = _micro_batch_specs(p, input_specs, f'partition_by={p.partition_by!r}')
        times = source.times(specs, devices[0], p.profile_dir, analyses)
        if p.partition_by == 'step_time':
            transfers = _transfers(analyses, specs, devices)
    if p.memory_limit is not None:
        specs = _micro_batch_specs(p, input_specs, f'memory_limit={p.memory_limit}')
        memory = _memory_model(p, schedule, source.memories(specs))
    costs = stage_costs.StageCostModel(times or stage_costs.times_by_flops(analyses), p.recompute, transfers)
    ends = _ends(p, schedule, analyses, times, memory)
    if p.partition_by == 'step_time':
        ends = fastest_ends(schedule, costs, ends, memory, p.memory_limit)
    return Cut(ends, times, memory, costs)


def fastest_ends(schedule: schedules.Schedule, costs: stage_costs.StageCostModel, ends: list[int],
                 memory: memory_model.MemoryModel | None = None, memory_limit: float | None = None) -> list[int]:
    """Returns the end indices with the shortest simulated step within the memory limit.

    Args:
        schedule: `Schedule`.
        costs: `StageCostModel` of the layers.
        ends: end indices within the limit, to start from.
        memory: see `exact_cut.balanced_partition_ends`.
        memory_limit: bytes of one device; None: no limit.
    """
    if memory_limit is None:
        return step_time_cut.fastest_ends(schedule, costs, ends)
    budget = memory_model.MemoryBudget(memory, memory_limit, costs.num_layers, schedule.stage_devices)
    return step_time_cut.fastest_ends(schedule, costs, ends, budget.fitting)


def _transfers(analyses, micro_batch, devices):
    """Returns seconds that a micro-batch's outputs of each layer take from one device to the next."""
    rows = tf.nest.flatten(micro_batch)[0].shape[0]
    seconds = layer_profile.seconds_a_byte(devices[0], devices[1]) if len(devices) > 1 else 0.0
    return [seconds * sum(tensor_sizes.plain_size([rows, *spec.shape[1:]], spec.dtype)
                          for spec in tf.nest.flatten(layer.outputs)) for layer in analyses]


def micro_batch_specs(input_specs: Any, num_micro_batches: int, purpose: str, batch_size: int | None = None) -> Any:
    """Returns the specs of the largest micro-batch.

    Args:
        input_specs: nest of `tf.TensorSpec` `[batch, ...]`.
        num_micro_batches: R M, those of all replicas.
        purpose: the field that needs them, for the message.
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


def _micro_batch_specs(p, input_specs, purpose):
    return micro_batch_specs(input_specs, p.num_replicas * p.num_micro_batches, purpose, p.batch_size)


def _memory_model(p, schedule, layers):
    num_slots = _DEFAULT_OPTIMIZER_SLOTS if p.num_optimizer_slots is None else p.num_optimizer_slots
    live = layer_memory.live_micro_batches(schedule)
    return memory_model.MemoryModel(layers, live, p.recompute, num_slots / p.num_replicas)


def _ends(p, schedule, analyses, times, memory):
    return partition_ends(
        analyses, schedule.num_stages, p.partition_by, times, extra_forwards(schedule, p.recompute),
        memory, p.memory_limit, schedule.stage_devices)
