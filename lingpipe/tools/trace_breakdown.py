"""The shares of a step's time, in the rows of GPipe's own table, and advice."""

import dataclasses
import itertools
import statistics
from typing import Any

from lingpipe import schedules
from lingpipe.schedules import simulation, timeline
from lingpipe.schedules.timeline import COMPUTE, RECOMPUTE

_LARGE_PERCENT = 5
_LARGE_SHARE = 10
_LARGE_RECOMPUTE_PERCENT = 15
_UNEQUAL = 1.1
_MOST_DOUBLINGS = 5


def input_percent(steps: list) -> float:
    """Return the percentage of a step, from the batch's request to the end of its update, spent waiting for input."""
    return statistics.fmean(100 * step.input_seconds / (step.input_seconds + step.seconds) for step in steps)


def input_shares(steps: list, parts: dict[str, Any]) -> dict[str, Any]:
    """Return shares of a step in per cent that add up to 100, with waiting for input if that was measured."""
    if not any(step.input_wait for step in steps):
        return parts
    waited = input_percent(steps)
    return {'input': waited, **{name: share * (100 - waited) / 100 for name, share in parts.items()}}


def input_advice(steps: list[timeline.StepTimes]) -> str | None:
    """Return the sentence to print if devices wait too long for input, or None."""
    waited = input_percent(steps)
    if waited < _LARGE_PERCENT:
        return None
    return (f'Devices wait for input in {waited:.0f} % of the step: share the '
            'work out (--cluster=multi_worker), or keep data where they are read faster.')


@dataclasses.dataclass(frozen=True)
class Breakdown:
    """Shares of a step in per cent, which add up to 100: the mean over the devices.

    GPipe's table has these shares (arXiv 1811.06965, as published at NeurIPS 2019), with set-up instead of transfer.
    """

    compute: float  # forward and backward passes, without recomputation
    recompute: float  # recomputation of activations
    bubble: float  # waiting that the schedule has even if all stages cost the same and transfers take no time
    # waiting that is added because actions differ in length, between stages, between replicas, or from one to the next
    imbalance: float
    transfer: float  # the rest of the waiting: tensors in transfer, and actions that were ready but had not started
    # from the end of the last action to the end of the step: gradients summed over replicas, averaged, clipped, and
    # applied
    update: float


def mean_breakdown(steps: list[timeline.StepTimes]) -> Breakdown:
    """Return the mean `Breakdown` of several `StepTimes`."""
    parts = [dataclasses.astuple(breakdown(step)) for step in steps]
    return Breakdown(*map(statistics.fmean, zip(*parts)))


def breakdown(step: timeline.StepTimes) -> Breakdown:
    """Split a step's time.

    Two simulations of the same schedule divide the waiting: with equal stages only the bubble is left; with measured
    durations of all actions, bubble and imbalance are left. The rest of the waiting is transfer.
    """
    unequal = min(simulation.replay(step.schedule, step.durations).idle, step.idle)
    bubble = min(simulation.replay(step.schedule, [balanced_durations(step.schedule, [step])]).idle, unequal)
    update = step.end - step.actions_end
    parts = (step.busy(COMPUTE), step.busy([RECOMPUTE]), bubble, unequal - bubble, step.idle - unequal, update)
    return Breakdown(*(100 * seconds / step.seconds for seconds in parts))


def mean_durations(steps: list) -> list[dict]:
    """Return for each replica {`Action`: mean seconds of its kind and stage}, over micro-batches and steps.

    A split B and a whole B are different kinds.
    """
    replicas, kind_of = zip(*[step.durations for step in steps]), _kinds_of(steps[0].schedule)
    return [_means(durations, lambda action: (kind_of(action), action.stage)) for durations in replicas]


def balanced_durations(schedule: schedules.Schedule, steps: list) -> dict:
    """Return {`Action`: seconds} for all replicas alike, as if the measured work were divided into equal stages.

    The schedule may have another number of micro-batches of the measured size.
    """
    measured = [durations for step in steps for durations in step.durations]
    kind_of = _kinds_of(steps[0].schedule)
    by_kind = {kind_of(action): seconds for action, seconds in _means(measured, kind_of).items()}
    kind_of = _kinds_of(schedule)
    actions = list(itertools.chain.from_iterable(schedule.device_actions))
    if (RECOMPUTE, False) in by_kind:
        actions += [action._replace(kind=RECOMPUTE)
                    for action in schedule.backwards() - schedule.backwards_after_own_forward()]
    return {action: by_kind[kind_of(action)] for action in actions}


def _kinds_of(schedule):
    return lambda action: (action.kind, schedule.is_split(action))


def _means(measured, group_of):
    groups = {}
    for durations in measured:
        for action, seconds in durations.items():
            groups.setdefault(group_of(action), []).append(seconds)
    return {action: statistics.fmean(groups[group_of(action)]) for action in measured[0]}


def advice(steps: list, batch_size: int, num_cores: int | None = None) -> list[str]:
    """Return sentences about the largest costs, and what to do about them.

    The advice never suggests more micro-batches than examples. `num_cores` is None if devices are not virtual CPU
    devices.
    """
    parts = mean_breakdown(steps)
    found = [_shared_cores(steps, num_cores), input_advice(steps), _balance(steps, parts),
             _bubble(steps, parts, batch_size), *_of_large_parts(parts)]
    return [text for text in found if text] or ['Nothing stands out: no part of the waiting is large.']


def _of_large_parts(parts):
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
    """Seconds of all actions of each stage, including recomputation, in all steps."""
    work = [0.0] * steps[0].schedule.num_stages
    for durations in itertools.chain.from_iterable(step.durations for step in steps):
        for action, seconds in durations.items():
            work[action.stage] += seconds
    return work


def _bubble(steps, parts, batch_size):
    if parts.bubble < _LARGE_SHARE:
        return None
    schedule = steps[0].schedule
    now = f'M={schedule.num_micro_batches} leaves {parts.bubble:.0f} % bubble'
    better = _smaller_bubble(steps, parts, batch_size)
    if better:
        num_micro_batches, percent = better
        return f'{now}: M={num_micro_batches} leaves {percent:.0f} %.'
    return f'{now}: use fewer partitions, a larger batch, or a schedule that waits less, such as zb_h1.'


def _smaller_bubble(steps, parts, batch_size):
    """Return the pair (M, bubble in per cent) of the first doubling of M with a small bubble, else of the last."""
    schedule, best = steps[0].schedule, None
    if schedule.name not in schedules.SCHEDULES:
        return None
    for doublings in range(1, _MOST_DOUBLINGS + 1):
        num_micro_batches = schedule.num_micro_batches * 2 ** doublings
        if num_micro_batches * steps[0].num_replicas > batch_size:
            break
        best = num_micro_batches, _bubble_percent(steps, parts, num_micro_batches)
        if best[1] < _LARGE_SHARE:
            break
    return best if best and best[1] < parts.bubble else None


def _bubble_percent(steps, parts, num_micro_batches):
    """Bubble of a step with the same batch in more micro-batches, if nothing else changes."""
    schedule = steps[0].schedule
    other = schedules.make_schedule(
        schedule.name, schedule.num_devices, num_micro_batches, schedule.num_virtual_stages)
    ratio = (_balanced_idle(other, steps)
             * schedule.num_micro_batches / num_micro_batches) / _balanced_idle(schedule, steps)
    bubble = parts.bubble * ratio
    return 100 * bubble / (100 - parts.bubble + bubble)


def _balanced_idle(schedule, steps):
    return simulation.replay(schedule, [balanced_durations(schedule, steps)]).idle


def _shared_cores(steps, num_cores):
    num_devices = steps[0].num_devices
    if num_cores is None or num_cores >= num_devices:
        return None
    in_flight = statistics.fmean(step.num_devices * (1 - step.bubble_fraction) for step in steps)
    return (f'{num_devices} virtual devices share {num_cores} processor {"core" if num_cores == 1 else "cores"}, with '
            f'{in_flight:.1f} actions in flight on average: an action that waits for a core counts as computing, so '
            'the bubble of as many accelerators would be another.')
