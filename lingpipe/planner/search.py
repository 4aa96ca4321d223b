"""Choosing the number of partitions, the number of micro-batches and what is recomputed: the fastest plan that fits."""

from typing import NamedTuple

from lingpipe import schedules
from lingpipe.planner import plans

AUTO = 'auto'
RECOMPUTE = ('none', 'stage', 'layer')

# Beyond that many actions a step takes longer to lay out than anybody waits, and planning does too.
_MOST_ACTIONS = 2**15


class Choices(NamedTuple):
    """What to choose among.

    Attributes:
        num_partitions: list of values of K.
        num_micro_batches: list of values of M.
        recompute: list of values of `recompute`.
    """

    num_partitions: list
    num_micro_batches: list
    recompute: list


def choices(p, num_layers, batch_size, most_partitions):
    """Returns the `Choices` that params leave open.

    Args:
        p: `GPipeLayer.Params()`, with 'auto' in some of `num_partitions`, `num_micro_batches` and `recompute`.
        num_layers: number of layers.
        batch_size: examples in a mini-batch.
        most_partitions: the largest number of partitions to consider.
    """
    most_partitions = min(most_partitions, num_layers // p.num_virtual_stages)
    return Choices(
        _doubling(most_partitions) if p.num_partitions == AUTO else [p.num_partitions],
        _divisors(batch_size) if p.num_micro_batches == AUTO else [p.num_micro_batches],
        list(RECOMPUTE) if p.recompute == AUTO else [p.recompute])


def all_plans(setting, p, open_choices):
    """Makes every plan that params allow.

    Args:
        setting: `Setting`.
        p: `GPipeLayer.Params()`.
        open_choices: `Choices`.

    Yields:
        `Plan`s; combinations that a schedule does not know are left out.
    """
    for num_partitions in open_choices.num_partitions:
        for num_micro_batches in open_choices.num_micro_batches:
            schedule = _schedule(p, num_partitions, num_micro_batches)
            if schedule is None:
                continue
            for recompute in open_choices.recompute:
                if not (schedule.splits_backward and recompute == 'layer'):
                    yield plans.make_plan(setting, schedule, recompute, p.partition_by)


def best(candidates):
    """Returns the fastest plan that fits; where none fits, the one that needs the least memory.

    Among plans that are equally fast to a hundredth, the one with the fewest partitions, then with the least memory.
    """
    fitting = [plan for plan in candidates if plan.fits]
    if not fitting:
        return min(candidates, key=lambda plan: max(plan.device_bytes))
    least = min(plan.step_time for plan in fitting)
    return min((plan for plan in fitting if plan.step_time <= 1.01 * least),
               key=lambda plan: (plan.schedule.num_devices, max(plan.device_bytes)))


def fewest_devices(setting, p, most_partitions):
    """Returns the fastest plan for the fewest devices on which the model fits, or None.

    Args:
        setting: `Setting`.
        p: `GPipeLayer.Params()`.
        most_partitions: the largest number of partitions to consider.
    """
    open_choices = choices(p.Copy().Set(num_partitions=AUTO), len(setting.stack), setting.stack.batch_size, most_partitions)
    for num_partitions in open_choices.num_partitions:
        candidates = list(all_plans(setting, p, open_choices._replace(num_partitions=[num_partitions])))
        if any(plan.fits for plan in candidates):
            return best(candidates)
    return None


def _schedule(p, num_partitions, num_micro_batches):
    if 2 * num_partitions * p.num_virtual_stages * num_micro_batches > _MOST_ACTIONS and AUTO in (
            p.num_partitions, p.num_micro_batches):
        return None
    try:
        return schedules.make_schedule(p.schedule, num_partitions, num_micro_batches, p.num_virtual_stages)
    except ValueError:
        if AUTO in (p.num_partitions, p.num_micro_batches):
            return None
        raise


def _doubling(most):
    return sorted({min(2**power, most) for power in range(most.bit_length() + 1)})


def _divisors(number):
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]
