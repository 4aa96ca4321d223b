"""A plan: one way to put a model on devices, with its memory and its time."""

import dataclasses
import functools
import itertools
import math
import re
from typing import Any, NamedTuple

from lingpipe import schedules
from lingpipe.partition import balancing, layer_memory, layer_profile, memory_model
from lingpipe.schedules import schedule_type
from lingpipe.stages import micro_batches

# The update reads weight, gradient and slots, and writes weight and slots.
_TIMES_OF_WEIGHTS, _TIMES_OF_SLOTS = 3, 2
# Plans are treated as equally fast if their step times are at most this multiple of the shortest.
EQUALLY_FAST = 1.01
KINDS = ('weights', 'slots', 'gradients', 'boundary', 'working')
LEGEND = {
    'weights': ('weights', '#7fb2e5'), 'slots': ('optimizer slots', '#b9a3e3'), 'gradients': ('gradients', '#6cc08b'),
    'boundary': ('boundary activations', '#e58f8f'), 'working': ('working activations', '#f4c266')}
_SHOWN_UNITS = {'TiB': 2**40, 'GiB': 2**30, 'MiB': 2**20, 'KiB': 2**10}
_UNITS = {'': 1, 'b': 1, **{f'{letter}b': 1000 ** power for power, letter in enumerate('kmgt', 1)},
          **{f'{letter}ib': 1024 ** power for power, letter in enumerate('kmgt', 1)}}
_LEAST_WITHOUT_UNIT = 2**20  # bytes; a smaller number lacks its unit, such as 16 for 16GiB


def cost_model(layer_times: list, memories: list, recompute: str, accelerator: Any,
               num_slots: float) -> layer_profile.StageCostModel:
    """Return the costs of layers in seconds, from times and memories for one micro-batch.

    Args:
        accelerator: an `Accelerator` or an `Achieved`.
    """
    moved = _TIMES_OF_WEIGHTS + _TIMES_OF_SLOTS * num_slots
    return layer_profile.StageCostModel(
        layer_times, recompute, transfers=[layer.outputs / accelerator.link_bandwidth for layer in memories],
        updates=[moved * layer.weights / accelerator.memory_bandwidth for layer in memories])


class PartitionPlan(NamedTuple):
    """The plan of one partition. All sizes are in bytes."""

    layer_names: list
    num_parameters: int  # trained ones only
    flops: int  # floating-point operations of the forward pass of one example
    weights: int  # weights, and other variables such as moving averages
    slots: int  # tensors of the optimizer in addition to the weights
    gradients: int  # sums of weight gradients
    boundary: int  # inputs of the partition, for all micro-batches in flight
    working: int  # all other activations and gradients at the peak, see `memory_model`
    num_frozen: int = 0

    @property
    def total(self) -> int:
        """Sum of all bytes."""
        return sum(getattr(self, kind) for kind in KINDS)


def _partition(analyses, memories, num_live, recompute, num_slots, total):
    """Return the `PartitionPlan` for at most `num_live` micro-batches in flight."""
    gradients = sum(layer.weights for layer in memories)
    weights, slots = gradients + sum(layer.state for layer in memories), math.ceil(num_slots * gradients)
    boundary = _boundary(memories[0], num_live, recompute)
    return PartitionPlan(
        layer_names=[layer.name for layer in analyses],
        num_parameters=sum(layer.num_parameters for layer in analyses),
        flops=sum(layer.flops.total for layer in analyses),
        weights=weights, slots=slots, gradients=gradients, boundary=boundary,
        working=total - weights - slots - gradients - boundary,
        num_frozen=sum(layer.num_frozen for layer in analyses))


def _boundary(first, num_live, recompute):
    """Return the bytes of the inputs that a partition retains."""
    if recompute == 'none':
        return num_live * first.read_inputs
    return (num_live - 1) * first.inputs + (first.inputs if recompute == 'layer' else first.read_inputs)


@dataclasses.dataclass(frozen=True)
class Setting:
    """What all plans with the same number of replicas have in common."""

    stack: Any  # `LayerStack`
    accelerator: Any  # `Accelerator` of every device
    memory_limit: int | None  # bytes of a device; None: no limit
    num_slots: float  # the optimizer's slots per weight, divided by the number of replicas
    dtype: str = 'float32'  # compute dtype, for the peak of the accelerator
    layer_times: Any = None  # function from a micro-batch's size to a measured list of `LayerTime`; None: not measured
    num_replicas: int = 1  # pipelines side by side; all other fields describe one of them, with its share of a batch

    def times(self, micro_batch_size: int) -> list:
        """Return the `LayerTime` of each layer. Without measurements, return lower bounds."""
        measured = self.layer_times and self.layer_times(micro_batch_size)
        return measured or self.stack.least_times(micro_batch_size, self.accelerator, self.dtype)


@dataclasses.dataclass(frozen=True)
class Plan:
    """One way to put a model on devices."""

    setting: Setting
    schedule: Any  # `Schedule`
    recompute: str  # 'none', 'stage' or 'layer'; 'selective' has no plan
    ends: list  # end indices of the partitions, one per stage
    is_cut_by_memory: bool  # whether the memory of a device limited the cut
    partitions: list  # `PartitionPlan`s, one per stage
    timeline: Any  # `StepTimes` of a step

    @property
    def micro_batch_size(self) -> int:
        """Number of examples in the largest micro-batch."""
        return micro_batches.most_rows(self.setting.stack.batch_size, self.schedule.num_micro_batches)

    @functools.cached_property
    def device_bytes(self) -> list[int]:
        """Bytes that each device needs for its stages."""
        return self.bytes_of('total')

    def bytes_of(self, kind: str) -> list[int]:
        """Return each device's bytes for one kind of tensor. `kind` is one of `KINDS`, or 'total'."""
        sums = [0] * self.schedule.num_devices
        for stage, part in enumerate(self.partitions):
            sums[self.schedule.device_of(stage)] += getattr(part, kind)
        return sums

    @property
    def fits(self) -> bool:
        """Whether every device has room for its stages. True without a memory limit."""
        limit = self.setting.memory_limit
        return limit is None or max(self.device_bytes) <= limit

    @property
    def step_time(self) -> float:
        """Seconds of a training step. Without measurements of the layers, this is a lower bound."""
        return self.timeline.seconds + self.summing_time

    @functools.cached_property
    def about_time(self) -> float | None:
        """Estimated seconds of a step, from speeds measured on the accelerator. None if no speeds are known."""
        accelerator, achieved = self.setting.accelerator, self.setting.accelerator.achieved
        if achieved is None:
            return None
        costs = cost_model(
            self.setting.stack.achieved_times(self.micro_batch_size, accelerator, achieved),
            self.setting.stack.memories(self.micro_batch_size), self.recompute, achieved, self.setting.num_slots)
        simulated = self.schedule.simulate(costs.stages(self.ends))
        return simulated.seconds + self._summing_time(achieved.sum_bandwidth)

    @property
    def summing_time(self) -> float:
        """Lower bound on the seconds to sum the replicas' gradients and send the new weights."""
        return self._summing_time(self.setting.accelerator.link_bandwidth)

    def _summing_time(self, bandwidth):
        # With R replicas, summing gradients moves (R - 1) / R of a device's gradient bytes (Thakur et al. 2005, section
        # 4.4: the lower bound of a reduction). Sending the weights moves as much.
        replicas = self.setting.num_replicas
        return 2 * (replicas - 1) / replicas * max(self.bytes_of('gradients')) / bandwidth

    @property
    def throughput(self) -> float:
        """Examples per second, of all replicas."""
        return self.setting.num_replicas * self.setting.stack.batch_size / self.step_time

    @property
    def speedup(self) -> float:
        """Throughput relative to one device with unlimited memory. Both throughputs ignore weight updates."""
        times = self.setting.times(self.micro_batch_size)
        work = self.setting.num_replicas * self.schedule.num_micro_batches * sum(time.seconds for time in times)
        return work / (self.timeline.actions_end + self.summing_time)


def make_plan(setting: Setting, schedule: schedule_type.Schedule, recompute: str, partition_by: Any = 'flops') -> Plan:
    """Make the plan of a model for a schedule. If no cut fits, ignore the memory limit."""
    size = micro_batches.most_rows(setting.stack.batch_size, schedule.num_micro_batches)
    memories = setting.stack.memories(size)
    costs = cost_model(setting.times(size), memories, recompute, setting.accelerator, setting.num_slots)
    work = _Work(memories, costs, recompute)
    best = _plan(setting, schedule, _cut(setting, schedule, partition_by, work, None), False, work)
    if best.fits or not isinstance(partition_by, str):
        return best
    try:
        ends = _cut(setting, schedule, partition_by, work, setting.memory_limit)
    except ValueError:  # no cut fits
        return best
    return _plan(setting, schedule, ends, True, work)


class _Work(NamedTuple):
    """The costs of layers for one micro-batch."""

    memories: list  # `LayerMemory` of each layer
    costs: layer_profile.StageCostModel
    recompute: str

    def memory_model(self, setting, schedule):
        """Return the `MemoryModel` of the layers for a schedule."""
        live = layer_memory.live_micro_batches(schedule)
        return memory_model.MemoryModel(self.memories, live, self.recompute, setting.num_slots)


def _cut(setting, schedule, partition_by, work, limit):
    analyses, costs = setting.stack.analyses, work.costs
    if partition_by == 'flops':
        costs = layer_profile.StageCostModel(layer_profile.times_by_flops(analyses), work.recompute)
    memory = work.memory_model(setting, schedule)
    return balancing.partition_ends(partition_by, analyses, costs, schedule, memory, limit)


def _plan(setting, schedule, ends, is_cut_by_memory, work):
    costs = work.costs.stages(ends)
    schedule = schedules.for_costs(schedule, costs)
    live = layer_memory.live_micro_batches(schedule)
    totals = work.memory_model(setting, schedule).of_cut(ends).tolist()
    partitions = [
        _partition(setting.stack.analyses[start:end], work.memories[start:end], num_live, work.recompute,
                   setting.num_slots, total)
        for start, end, num_live, total in zip([0, *ends], ends, live, totals)]
    return Plan(
        setting, schedule, work.recompute, ends, is_cut_by_memory, partitions, schedule.simulate(costs))


def to_bytes(field: str, size: int | str) -> int:
    """Return the number of bytes of a size such as '16GiB', '8 GB', '16e9' or 1024.

    Raises:
        ValueError: `size` is not a memory size; the message names `field`.
    """
    match = re.fullmatch(r'\s*(\d+(?:\.\d*)?(?:e\d+)?)\s*([a-z]*)\s*', str(size).lower())
    num_bytes = float(match[1]) * _UNITS[match[2]] if match and match[2] in _UNITS else 0
    if not (1 if match and match[2] else _LEAST_WITHOUT_UNIT) <= num_bytes < math.inf:
        raise ValueError(f'{field}={size!r} is not a memory size. Write it as 16GiB, 40GB or as a number of bytes, '
                         'as 16e9.')
    return round(num_bytes)


def to_text(num_bytes: float) -> str:
    """Return a number of bytes in the largest fitting unit, such as '1.50 GiB'."""
    unit = _unit(num_bytes)
    return f'{num_bytes / _SHOWN_UNITS[unit]:,.2f} {unit}'


def _unit(num_bytes):
    return next((unit for unit, size in _SHOWN_UNITS.items() if num_bytes >= size), 'KiB')


def figure(plan: Plan, title: str) -> Any:
    """Draw a figure of the memory of each device, by kind of tensor."""
    from lingpipe import drawing  # here, because matplotlib takes a while to import
    limit = plan.setting.memory_limit
    unit = _unit(max([*plan.device_bytes, limit or 0]))
    blocks = []
    for device, sizes in enumerate(zip(*map(plan.bytes_of, KINDS))):
        ends = [num_bytes / _SHOWN_UNITS[unit] for num_bytes in itertools.accumulate(sizes)]
        blocks += [drawing.Block(device, *block) for block in zip(KINDS, [0.0, *ends], ends)]
    names = [f'device {device}: {to_text(num_bytes)}' for device, num_bytes in enumerate(plan.device_bytes)]
    return drawing.rows([drawing.Rows(title, names, blocks)], LEGEND, unit, limit and limit / _SHOWN_UNITS[unit])
