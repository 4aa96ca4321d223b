"""Analysis of measured steps, with shares of time, advice and a picture."""

import dataclasses
import itertools
import pathlib
import statistics
from typing import Self

import tensorflow as tf

from lingpipe import drawing, host_processor, schedules, wording
from lingpipe.partition import balancing
from lingpipe.pipeline import gpipe_layer
from lingpipe.schedules import simulation, timeline
from lingpipe.schedules.timeline import COMPUTE, RECOMPUTE
from lingpipe.tools import trace_picture

_LARGE_PERCENT = 5
_LARGE_SHARE = 10
_LARGE_RECOMPUTE_PERCENT = 15
_UNEQUAL = 1.1


def input_percent(steps: list[timeline.StepTimes]) -> float:
    """Return the mean percentage of a step that is spent waiting for input."""
    return statistics.fmean(100 * step.input_seconds / (step.input_seconds + step.seconds) for step in steps)


def input_advice(steps: list[timeline.StepTimes]) -> str | None:
    """Return advice if devices wait too long for input, else None."""
    waited = input_percent(steps)
    if waited < _LARGE_PERCENT:
        return None
    return (f'Devices wait for input in {waited:.0f} % of the step: share the '
            'work out (--cluster=multi_worker), or keep data where they are read faster.')


@dataclasses.dataclass(frozen=True)
class Breakdown:
    """Percentages of a step's time, averaged over the devices. They add up to 100.

    The table of the GPipe paper has these percentages, with set-up instead of transfer (arXiv 1811.06965, as published
    at NeurIPS 2019).
    """

    compute: float  # forward and backward passes, without recomputation
    recompute: float  # recomputation of activations
    bubble: float  # waiting that the schedule has even if all stages cost the same and transfers take no time
    # waiting because actions differ in length: between stages, between replicas, or from one action to the next
    imbalance: float
    transfer: float  # the rest of the waiting: tensors in transfer, and actions that were ready but had not started
    # from the end of the last action to the end of the step: gradients summed over replicas, averaged, clipped, and
    # applied
    update: float


def mean_breakdown(steps: list[timeline.StepTimes]) -> Breakdown:
    """Return the mean `Breakdown` of several steps."""
    parts = [dataclasses.astuple(breakdown(step)) for step in steps]
    return Breakdown(*map(statistics.fmean, zip(*parts)))


def breakdown(step: timeline.StepTimes) -> Breakdown:
    """Return the `Breakdown` of a step."""
    # Two simulations of the schedule divide the waiting. The bubble is the waiting in a simulation with equal stages.
    # The imbalance is how much longer a simulation with measured durations waits. All other waiting is transfer.
    unequal = min(simulation.replay(step.schedule, step.durations).idle, step.idle)
    bubble = min(simulation.replay(step.schedule, [balanced_durations(step.schedule, step.durations)]).idle, unequal)
    update = step.end - step.actions_end
    parts = (step.busy(COMPUTE), step.busy([RECOMPUTE]), bubble, unequal - bubble, step.idle - unequal, update)
    return Breakdown(*(100 * seconds / step.seconds for seconds in parts))


def mean_durations(steps: list[timeline.StepTimes]) -> list[dict]:
    """Return {`Action`: mean seconds} for each replica. All actions of one kind and stage have the same mean."""
    replicas, kind_of = zip(*[step.durations for step in steps]), _kinds_of(steps[0].schedule)
    return [_means(durations, lambda action: (kind_of(action), action.stage)) for durations in replicas]


def balanced_durations(schedule: schedules.Schedule, measured: list[dict]) -> dict:
    """Return {`Action`: mean seconds}, as if all stages had equal work."""
    return _means(measured, _kinds_of(schedule))


def _kinds_of(schedule):
    return lambda action: (action.kind, schedule.is_split(action))  # split and whole backward passes are two kinds


def _means(measured, group_of):
    groups = {}
    for durations in measured:
        for action, seconds in durations.items():
            groups.setdefault(group_of(action), []).append(seconds)
    return {action: statistics.fmean(groups[group_of(action)]) for action in measured[0]}


def advice(steps: list[timeline.StepTimes], num_cores: int | None = None) -> list[str]:
    """Return advice about the largest costs.

    `num_cores` is the number of cores that virtual CPU devices share; None for other devices.
    """
    parts = mean_breakdown(steps)
    found = [_shared_cores(steps, num_cores), input_advice(steps), _balance(steps, parts),
             *_of_large_parts(steps[0].schedule, parts)]
    return [text for text in found if text] or ['Nothing stands out: no part of the waiting is large.']


def _of_large_parts(schedule, parts):
    if parts.bubble >= _LARGE_SHARE:
        yield (f'M={schedule.num_micro_batches} leaves {parts.bubble:.0f} % bubble: use more micro-batches, fewer '
               'partitions, a larger batch, or a schedule that waits less, such as zb_h1.')
    if parts.recompute >= _LARGE_RECOMPUTE_PERCENT:
        yield (f"Recomputation takes {parts.recompute:.0f} % of the step: where memory allows, recompute='none' saves "
               'it.')
    if parts.transfer >= _LARGE_SHARE:
        yield (f'Transfer takes {parts.transfer:.0f} % of the step: use fewer and larger micro-batches, or cut where '
               'tensors are small.')
    if parts.update >= _LARGE_SHARE:
        yield f'The update takes {parts.update:.0f} % of the step: a larger batch needs fewer of them.'


def _balance(steps, parts):
    work = _work_of_stages(steps)
    largest = max(range(len(work)), key=work.__getitem__)
    times_mean = work[largest] / (statistics.fmean(work) or 1.0)
    if times_mean < _UNEQUAL:
        return None
    return (f'Partition {largest} is {times_mean:.1f}x the mean: give some of its layers to others, with '
            "partition_by='time' or a list of ends. "
            f'Actions of unequal length cost {parts.imbalance:.0f} % of the step.')


def _work_of_stages(steps):
    """Return a list with each stage's work in seconds, summed over the steps and replicas."""
    work = [0.0] * steps[0].schedule.num_stages
    for durations in itertools.chain.from_iterable(step.durations for step in steps):
        for action, seconds in durations.items():
            work[action.stage] += seconds
    return work


def _shared_cores(steps, num_cores):
    num_devices = steps[0].num_devices
    if num_cores is None or num_cores >= num_devices:
        return None
    in_flight = statistics.fmean(step.num_devices * (1 - step.bubble_fraction) for step in steps)
    return (f'{num_devices} virtual devices share {num_cores} processor {"core" if num_cores == 1 else "cores"}, with '
            f'{in_flight:.1f} actions in flight on average: an action that waits for a core counts as computing, so '
            'the bubble of as many accelerators would be another.')


@dataclasses.dataclass(frozen=True)
class Traced:
    """Measured steps. `print` shows where the time went, and gives advice."""

    steps: list[timeline.StepTimes]
    row_names: list[str]  # of the devices
    num_cores: int | None  # processor cores that the devices share; None: they are accelerators

    @classmethod
    def of(cls, body: gpipe_layer.GPipeLayer, steps: list[timeline.StepTimes]) -> Self:
        """Return a `Traced` for measured `steps` of a built pipeline."""
        on_cpu = any(tf.DeviceSpec.from_string(stage.device).device_type == 'CPU' for stage in body.stages)
        return cls(steps, _row_names(body), host_processor.num_cores() if on_cpu else None)

    def __str__(self) -> str:
        first, parts = self.steps[0], mean_breakdown(self.steps)
        milliseconds = statistics.fmean(step.input_seconds + step.seconds for step in self.steps) * 1000
        shares = dataclasses.asdict(parts)
        if any(step.input_wait for step in self.steps):
            waited = input_percent(self.steps)
            shares = {'input': waited, **{name: share * (100 - waited) / 100 for name, share in shares.items()}}
        if not first.updates:  # not measured
            del shares['update']
        mean = f'1 step of {milliseconds:.1f} ms' if len(self.steps) == 1 else (
            f'{len(self.steps)} steps of {milliseconds:.1f} ms on average')
        replicas = f'{first.num_replicas} replicas of ' if first.num_replicas > 1 else ''
        each, schedule = ' each' if replicas else '', first.schedule
        title = (f'{mean}: {schedule.name}, {replicas}{schedule.num_stages} partitions on '
                 f'{first.num_devices} devices, {schedule.num_micro_batches} micro-batches{each}')
        table = wording.table(['part', '% of the step'], list(shares.items()))
        return '\n\n'.join([
            title, table, '\n'.join(advice(self.steps, self.num_cores))])

    def png(self) -> bytes:
        """Return a PNG picture of a measured and a simulated step."""
        typical = sorted(self.steps, key=lambda step: step.seconds)[(len(self.steps) - 1) // 2]
        panels = {'measured': typical, 'simulated on the mean times': simulated(self.steps)}
        return drawing.png(trace_picture.figure(panels, self.row_names))

    def files(self) -> dict[str, str | bytes]:
        """Return {file name: contents} of the picture, and of the trace file for ui.perfetto.dev."""
        return {'timeline.png': self.png(), 'trace.json': trace_picture.trace_text(self.steps, self.row_names)}

    def write(self, folder: str) -> None:
        """Write timeline.png and trace.json to `folder`. Create the folder if needed."""
        path = pathlib.Path(folder).expanduser()
        path.mkdir(parents=True, exist_ok=True)
        for name, contents in self.files().items():
            (path / name).write_bytes(contents.encode() if isinstance(contents, str) else contents)


def simulated(steps: list[timeline.StepTimes]) -> timeline.StepTimes:
    """Return a step simulated with the mean times of actions and updates. Transfers take no time."""
    ends = [(begin - step.actions_end, end - begin) for step in steps for begin, end in step.updates]
    begin, end = [max(statistics.fmean(parts), 0.0) for parts in zip(*ends)] or [0.0, 0.0]
    return simulation.replay(steps[0].schedule, mean_durations(steps), (begin, end))


def _row_names(body):
    """Return a name for each device, such as 'CPU:3, replica 1, partition 1'."""
    names = []
    for replica, stages in enumerate(body.replicas):
        of_replica = f'replica {replica}, ' if len(body.replicas) > 1 else ''
        for device in range(body.schedule.num_devices):
            held = [stage for stage in stages if body.schedule.device_of(stage.index) == device]
            indices = ' '.join(str(stage.index) for stage in held)
            names.append(f'{balancing.short_device(held[0].device)}, {of_replica}'
                         f'partition{"s" if len(held) > 1 else ""} {indices}')
    return names
