"""What a step's time was spent on, in the rows of GPipe's own table, and how long devices waited for the input."""

import dataclasses
import statistics

from lingpipe.schedules import simulation
from lingpipe.schedules.step_times import COMPUTE, RECOMPUTE

_LARGE_PERCENT = 5


def input_percent(steps):
    """Returns the share of the time from asking for a batch to the end of its update in which it was waited for.

    Args:
        steps: list of `StepTimes`.
    """
    return statistics.fmean(100 * step.input_seconds / (step.input_seconds + step.seconds) for step in steps)


def input_shares(steps, parts):
    """Returns the shares of a step with the waiting for input as one of them; they add up to 100.

    Args:
        steps: list of `StepTimes`.
        parts: dictionary from name to share of the step without that waiting, in per cent, which add up to 100.

    Returns:
        Dictionary from name to per cent; that of `parts` where no waiting for input was measured.
    """
    if not any(step.input_wait for step in steps):
        return parts
    waited = input_percent(steps)
    return {'input': waited, **{name: share * (100 - waited) / 100 for name, share in parts.items()}}


def input_advice(steps):
    """Returns the sentence about an input that is waited for, or None."""
    waited = input_percent(steps)
    if waited < _LARGE_PERCENT:
        return None
    return (f'Devices wait for input in {waited:.0f} % of the step: make batches ahead and in parallel (prefetch and '
            "num_parallel_calls at None), keep images in memory (cache='encoded' or 'decoded'), or share the work out "
            '(num_hosts, data_service).')


@dataclasses.dataclass(frozen=True)
class Breakdown:
    """Shares of a step in per cent, which add up to 100: the mean over the devices.

    GPipe breaks a step down into these (arXiv 1811.06965, as published at NeurIPS 2019), with set-up for transfer.

    Attributes:
        compute: forward and backward passes, without recomputation.
        recompute: computing activations again.
        bubble: waiting that the schedule has even where all stages cost the same and nothing takes time to send.
        imbalance: waiting that is added because actions differ in length, between stages, between replicas, or from one to
            the next.
        transfer: the rest of the waiting: tensors on their way, and actions that could run and did not yet.
        update: from the end of the last action to the end of the step: gradients summed over
            replicas, averaged, clipped, and applied.
    """

    compute: float
    recompute: float
    bubble: float
    imbalance: float
    transfer: float
    update: float


def mean_breakdown(steps):
    """Returns the `Breakdown` of several `StepTimes`, the mean of theirs."""
    parts = [dataclasses.astuple(breakdown(step)) for step in steps]
    return Breakdown(*map(statistics.fmean, zip(*parts)))


def breakdown(step):
    """Splits a step's time.

    Waiting is told apart by two simulations of the same schedule: with equal stages, which leaves the bubble; then with every
    action as long as it was, which leaves bubble and imbalance. Whatever was waited beyond that is transfer.

    Args:
        step: `StepTimes`.

    Returns:
        `Breakdown`.
    """
    unequal = min(simulation.replay(step.schedule, step.durations).idle, step.idle)
    bubble = min(simulation.replay(step.schedule, [balanced_durations(step.schedule, [step])]).idle, unequal)
    update = step.end - step.actions_end
    parts = (step.busy(COMPUTE), step.busy([RECOMPUTE]), bubble, unequal - bubble, step.idle - unequal, update)
    return Breakdown(*(100 * seconds / step.seconds for seconds in parts))


def mean_durations(steps):
    """Returns for each action of each replica the mean duration of its kind in its stage, over micro-batches and steps.

    Args:
        steps: list of `StepTimes` of one schedule.

    Returns:
        For each replica, the dictionary from `Action` to seconds.
    """
    replicas = zip(*[step.durations for step in steps])
    return [_means(durations, lambda action: (action.kind, action.stage)) for durations in replicas]


def balanced_durations(schedule, steps):
    """Returns durations of a pipeline with as much work as was measured, and equal stages.

    Args:
        schedule: `Schedule` to give durations for, of the same stages; it may have another number of micro-batches.
        steps: list of `StepTimes`.

    Returns:
        Dictionary from `Action` to seconds, for every replica. Micro-batches are as large as the measured ones.
    """
    measured = [durations for step in steps for durations in step.durations]
    by_kind = {action.kind: seconds for action, seconds in _means(measured, lambda action: action.kind).items()}
    durations = {action: by_kind[action.kind] for actions in schedule.device_actions for action in actions}
    if RECOMPUTE in by_kind:
        durations.update({action._replace(kind=RECOMPUTE): by_kind[RECOMPUTE]
                          for action in schedule.backwards() - schedule.backwards_after_own_forward()})
    return durations


def _means(measured, group_of):
    groups = {}
    for durations in measured:
        for action, seconds in durations.items():
            groups.setdefault(group_of(action), []).append(seconds)
    return {action: statistics.fmean(groups[group_of(action)]) for action in measured[0]}
