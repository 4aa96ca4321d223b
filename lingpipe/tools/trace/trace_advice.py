"""What to change, from what a step's time was spent on."""

import itertools
import statistics

from lingpipe import schedules
from lingpipe.schedules import simulation
from lingpipe.tools.trace import trace_breakdown

_LARGE_PERCENT = 10
_LARGE_RECOMPUTE_PERCENT = 15
_UNEQUAL = 1.1
_MOST_DOUBLINGS = 5


def advice(steps, batch_size, num_cores=None):
    """Returns sentences about what costs most and what to do about it.

    Args:
        steps: list of measured `StepTimes` of one schedule.
        batch_size: examples in a mini-batch, which bounds the number of micro-batches.
        num_cores: processor cores that virtual CPU devices share; None where devices are accelerators.

    Returns:
        List of texts; never empty.
    """
    parts = trace_breakdown.mean_breakdown(steps)
    found = [_shared_cores(steps, num_cores), trace_breakdown.input_advice(steps), _balance(steps, parts),
             _bubble(steps, parts, batch_size), _recompute(parts), _transfer(parts), _update(parts)]
    return [text for text in found if text] or ['Nothing stands out: no part of the waiting is large.']


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
    """Seconds of all actions of each stage, recomputation included, in all steps."""
    work = [0.0] * steps[0].schedule.num_stages
    for durations in itertools.chain.from_iterable(step.durations for step in steps):
        for action, seconds in durations.items():
            work[action.stage] += seconds
    return work


def _bubble(steps, parts, batch_size):
    if parts.bubble < _LARGE_PERCENT:
        return None
    schedule = steps[0].schedule
    now = f'M={schedule.num_micro_batches} leaves {parts.bubble:.0f} % bubble'
    better = _smaller_bubble(steps, parts, batch_size)
    if better:
        num_micro_batches, percent = better
        return f'{now}: M={num_micro_batches} leaves {percent:.0f} %.'
    return f'{now}: use fewer partitions, a larger batch, or a schedule that waits less, such as zb_h1.'


def _smaller_bubble(steps, parts, batch_size):
    """Returns the pair (M, bubble in per cent) of the first doubling of M whose bubble is small, else of the last one."""
    schedule, best = steps[0].schedule, None
    if schedule.name not in schedules.SCHEDULES:
        return None
    for doublings in range(1, _MOST_DOUBLINGS + 1):
        num_micro_batches = schedule.num_micro_batches * 2 ** doublings
        if num_micro_batches * steps[0].num_replicas > batch_size:
            break
        best = num_micro_batches, _bubble_percent(steps, parts, num_micro_batches)
        if best[1] < _LARGE_PERCENT:
            break
    return best if best and best[1] < parts.bubble else None


def _bubble_percent(steps, parts, num_micro_batches):
    """Bubble of the same mini-batch in more micro-batches, of a step in which nothing else changes."""
    schedule = steps[0].schedule
    other = schedules.make_schedule(
        schedule.name, schedule.num_devices, num_micro_batches, schedule.num_virtual_stages)
    ratio = (_balanced_idle(other, steps) * schedule.num_micro_batches / num_micro_batches) / _balanced_idle(schedule, steps)
    bubble = parts.bubble * ratio
    return 100 * bubble / (100 - parts.bubble + bubble)


def _balanced_idle(schedule, steps):
    return simulation.replay(schedule, [trace_breakdown.balanced_durations(schedule, steps)]).idle


def _recompute(parts):
    if parts.recompute < _LARGE_RECOMPUTE_PERCENT:
        return None
    return f"Recomputation takes {parts.recompute:.0f} % of the step: where memory allows, recompute='none' saves it."


def _transfer(parts):
    if parts.transfer < _LARGE_PERCENT:
        return None
    return (f'Transfer takes {parts.transfer:.0f} % of the step: use fewer and larger micro-batches, or cut where tensors are '
            'small.')


def _update(parts):
    if parts.update < _LARGE_PERCENT:
        return None
    return f'The update takes {parts.update:.0f} % of the step: a larger batch needs fewer of them.'


def _shared_cores(steps, num_cores):
    num_devices = steps[0].num_devices
    if num_cores is None or num_cores >= num_devices:
        return None
    in_flight = statistics.fmean(step.mean_actions_in_flight for step in steps)
    return (f'{num_devices} virtual devices share {num_cores} processor {"core" if num_cores == 1 else "cores"}, with '
            f'{in_flight:.1f} actions in flight on average: an action that waits for a core counts as computing, so the '
            'bubble of as many accelerators would be another.')
