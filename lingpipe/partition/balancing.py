"""The cut of the layers of a pipeline into partitions."""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from lingpipe import hyperparams, schedules, wording
from lingpipe.devices import device_kinds
from lingpipe.partition import accelerators, exact_cut, layer_analysis, layer_memory, layer_profile, memory_model
from lingpipe.stages import micro_batches

AUTO = 'auto'
# Adam's, the most common optimizer for networks that need a pipeline.
_DEFAULT_OPTIMIZER_SLOTS = 2


class Partition(NamedTuple):
    """Contiguous layers with their device and costs."""

    layer_names: list
    device: str
    num_parameters: int
    flops: int  # floating-point operations of the forward pass of one example
    seconds: float | None = None  # forward and backward pass of one micro-batch; None if it was not measured
    memory: int | None = None  # estimate of the bytes that it needs; None if none was made
    num_frozen: int = 0


def partition_ends(partition_by: Any, analyses: list[layer_analysis.LayerAnalysis],
                   costs: layer_profile.StageCostModel, schedule: schedules.Schedule,
                   memory: memory_model.MemoryModel | None = None, memory_limit: float | None = None) -> list[int]:
    """Return the end indices of partitions, in ascending order.

    Args:
        partition_by: 'params' to balance numbers of parameters, another text to balance `costs`, or the end indices.
        memory_limit: bytes of one device. None: no limit.

    Raises:
        ValueError: no cut is possible, or the given cut is not possible.
    """
    if isinstance(partition_by, str):
        by_params = partition_by == 'params'
        balanced = [layer.num_parameters for layer in analyses] if by_params else costs.of_layers(schedule)
        return exact_cut.balanced_partition_ends(
            balanced, schedule.num_stages, memory, memory_limit, schedule.stage_devices)
    ends = exact_cut.validate_partition_ends(partition_by, len(analyses), schedule.num_stages)
    if memory_limit is not None:
        memory_model.MemoryBudget(memory, memory_limit, len(analyses), schedule.stage_devices).require(ends)
    return ends


class Cut(NamedTuple):
    """A cut of a stack of layers, and the measurements behind the cut."""

    ends: list  # ascending end indices, one per stage
    layer_times: Any = None  # list of `layer_profile.LayerTime`; None if nothing was measured
    memory: Any = None  # `memory_model.MemoryModel`; None if no memory was estimated
    costs: Any = None  # `StageCostModel`, in seconds if layers were measured, else in floating-point operations
    recompute: str = 'none'  # what partitions recompute; not 'auto'
    memory_limit: float | None = None  # bytes; no device of the cut needs more

    def describe(self, analyses: list[layer_analysis.LayerAnalysis], devices: list[str]) -> list[Partition]:
        """Return the `Partition` of each stage. `devices` has a device name per stage."""
        memory = [None] * len(self.ends) if self.memory is None else self.memory.of_cut(self.ends).tolist()
        return [
            Partition(
                [layer.name for layer in analyses[start:end]], device,
                sum(layer.num_parameters for layer in analyses[start:end]),
                sum(layer.flops.total for layer in analyses[start:end]),
                None if self.layer_times is None else sum(time.seconds for time in self.layer_times[start:end]),
                num_bytes, sum(layer.num_frozen for layer in analyses[start:end]))
            for start, end, device, num_bytes in zip([0, *self.ends], self.ends, devices, memory)]

    def most_kept_bytes(self, schedule: schedules.Schedule) -> list[float | None]:
        """Return for each stage how many bytes a micro-batch may retain besides the stage's inputs. None: no limit."""
        if self.memory_limit is None:
            return [None] * len(self.ends)
        devices = np.array(schedule.stage_devices)
        waiting = np.array(layer_memory.live_micro_batches(schedule)) - 1  # the memory estimate contains one already
        free = self.memory_limit - np.bincount(devices, self.memory.of_cut(self.ends))
        # The other micro-batches in flight on a device share the free bytes equally.
        return [float(max(share, 0.0)) for share in (free / np.maximum(np.bincount(devices, waiting), 1))[devices]]


def cut(p: hyperparams.Params, schedule: schedules.Schedule, source: Any, analyses: list[layer_analysis.LayerAnalysis],
        input_specs: Any, devices: Sequence[str]) -> Cut:
    """Cut a stack of layers according to params.

    With recompute='auto', partitions recompute as little as memory allows.

    Args:
        source: source of the layers, such as `layer_sources.LayersOfParams`.
        input_specs: nest of `tf.TensorSpec` `[batch, ...]` of the input.
        devices: names of the devices of one replica. Layers are measured on the first device.

    Raises:
        ValueError: no cut is possible, or a size that measuring needs is unknown.
    """
    times = memories = None
    is_for_gpus = p.recompute == AUTO and device_kinds.kind_of(devices[0]) != 'CPU'
    limit = p.memory_limit or (accelerators.memory_of_gpus() if is_for_gpus else None)
    if p.partition_by == 'time':
        specs = micro_batch_specs(input_specs, p, "partition_by='time'")
        times = source.times(specs, devices[0], p.profile_dir, analyses)
    if p.memory_limit is not None or limit is not None and _is_known(input_specs, p.batch_size):
        memories = source.memories(micro_batch_specs(input_specs, p, f'memory_limit={limit}'))

    def cut_with(recompute, limit):
        costs = layer_profile.StageCostModel(times or layer_profile.times_by_flops(analyses), recompute)
        memory = None if memories is None else _memory_model(p, schedule, memories, recompute)
        ends = partition_ends(p.partition_by, analyses, costs, schedule, memory, limit)
        return Cut(ends, times, memory, costs, recompute, limit)

    if p.recompute != AUTO:
        return cut_with(p.recompute, limit)
    if memories is None:
        # On accelerators, memory_limit or batch_size is not known. CPUs without a limit recompute nothing.
        return cut_with('stage' if is_for_gpus else 'none', None)
    for value in ('none', 'stage') if schedule.splits_backward else ('none', 'stage', 'layer'):
        try:
            return cut_with(value, limit)
        except ValueError:  # no cut fits
            continue
    # If nothing fits, only the user's own limit is an error.
    return cut_with(value, p.memory_limit)


def micro_batch_specs(input_specs: Any, p: hyperparams.Params, purpose: str) -> Any:
    """Return the specs of the largest micro-batch.

    Args:
        input_specs: nest of `tf.TensorSpec` `[batch, ...]` of the whole batch.
        purpose: what needs the specs, for the error message.

    Raises:
        ValueError: a size is unknown.
    """
    if not _is_known(input_specs, p.batch_size):
        raise ValueError(
            f'{purpose} needs every size of the input, the batch size included, and got '
            f'{[tuple(spec.shape) for spec in tf.nest.flatten(input_specs)]}. Set batch_size to the rows of a training '
            "batch, and give the inputs of the model all their other sizes, or set partition_by='flops' and "
            'memory_limit=None.')
    batch_size = tf.nest.flatten(input_specs)[0].shape[0] or p.batch_size
    count = micro_batches.count(input_specs, p.num_replicas * p.num_micro_batches)
    return micro_batches.specs_of(input_specs, micro_batches.most_rows(batch_size, count))


def _is_known(input_specs, batch_size):
    specs = tf.nest.flatten(input_specs)
    return all((spec.shape[0] or batch_size) and spec.shape[1:].is_fully_defined() for spec in specs)


def _memory_model(p, schedule, layers, recompute):
    num_slots = _DEFAULT_OPTIMIZER_SLOTS if p.num_optimizer_slots is None else p.num_optimizer_slots
    live = layer_memory.live_micro_batches(schedule)
    return memory_model.MemoryModel(layers, live, recompute, num_slots / p.num_replicas)


def parameters_in_words(parts: list) -> str:
    """Return the number of parameters as text."""
    trained, frozen = sum(part.num_parameters for part in parts), sum(part.num_frozen for part in parts)
    return f'{trained + frozen:,} parameters, of which {trained:,} are trained' if frozen else f'{trained:,} parameters'


def parameter_columns(parts: list) -> tuple[list[str], list[list[int]]]:
    """Return the titles and the values of the table columns that count parameters."""
    columns = {'parameters': [part.num_parameters + part.num_frozen for part in parts]}
    if any(part.num_frozen for part in parts):
        columns['trained'] = [part.num_parameters for part in parts]
    return list(columns), list(columns.values())


def table(partitions: list) -> str:
    """Return a table with one row per partition."""
    columns = [
        ('partition', range(len(partitions))),
        ('device', [short_device(part.device) for part in partitions]),
        ('from .. to', [span(part.layer_names) for part in partitions]),
        ('layers', [len(part.layer_names) for part in partitions]),
        *zip(*parameter_columns(partitions)),
        *_cost_columns('MFLOPs', [part.flops / 1e6 for part in partitions])]
    if partitions[0].seconds is not None:
        columns += _cost_columns('ms a micro-batch', [1e3 * part.seconds for part in partitions])
    if partitions[0].memory is not None:
        columns.append(('MB by estimate', [part.memory / 1e6 for part in partitions]))
    titles, values = zip(*columns)
    return wording.table(list(titles), list(map(list, zip(*values))))


def _cost_columns(title, costs):
    mean = sum(costs) / len(costs)
    return [(title, costs), ('of mean', [f'{cost / mean:.2f}' if mean else '-' for cost in costs])]


def short_device(device: str) -> str:
    """Return a short name of a device, such as 'CPU:1' or 'worker:0/CPU:1'."""
    here = re.sub('^/job:(localhost|chief)/replica:0/task:0', '', device)
    return re.sub(r'^/job:(\w+)/replica:0/task:(\d+)', r'\1:\2', here).replace('/device:', '/').lstrip('/')


def span(names: list[str]) -> str:
    """Return the names of the first and the last layer of a partition."""
    return names[0] if len(names) == 1 else f'{names[0]} .. {names[-1]}'
