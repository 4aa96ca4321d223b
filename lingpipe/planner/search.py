"""Search for the plan that 'auto' chooses. This plan fits, and has the fastest simulated step.

Plans are made in ascending order of a lower bound on the step time. The bound ignores waiting::

    bound  1.0   1.0   1.1   1.1   1.4   1.4   ...
    step   1.9   1.3   1.2   1.6                     <- a search for the two best plans stops: 1.4 is more than 1.3

Most combinations of settings are never simulated.
"""

import itertools
import math
from typing import Any, NamedTuple

from lingpipe import hyperparams, schedules
from lingpipe.pipeline import validation
from lingpipe.planner import plans
from lingpipe.stages import micro_batches

AUTO = 'auto'
RECOMPUTE = ('none', 'stage', 'layer')
FIELDS = ('num_partitions', 'num_micro_batches', 'recompute', 'num_replicas', 'schedule', 'num_virtual_stages',
          'partition_by')
NUM_SHOWN = 5  # plans that are compared in a table

# With more actions, building the graph of a step takes too long, and so does planning.
_MOST_ACTIONS = 2**15
_DEFAULT_MOST_PARTITIONS = 1024
_NUMBERS_OF_VIRTUAL_STAGES = (2, 3, 4)


class _Combination(NamedTuple):
    """The settings of one plan."""

    bound: float  # lower bound on the step time: seconds of evenly spread work per device, without waiting
    setting: plans.Setting  # of one of its replicas
    order: Any  # value of `schedule`
    sizes: tuple[int, int, int]  # K, M and V
    recompute: str


def numbers_of_micro_batches(p: hyperparams.Params, batch_size: int) -> list[int]:
    """Return the numbers of micro-batches to choose among."""
    return _divisors(batch_size) if p.num_micro_batches == AUTO else [p.num_micro_batches]


def _numbers_of_partitions(p, num_layers, most):
    """Return the numbers of partitions to choose among."""
    num_virtual_stages = 1 if p.num_virtual_stages == AUTO else p.num_virtual_stages
    if num_virtual_stages > num_layers:
        raise ValueError(f'num_virtual_stages={num_virtual_stages} is more than the {num_layers} layers: each stage '
                         f'needs a layer. Set num_virtual_stages to {num_layers} or less.')
    if p.num_partitions == AUTO:
        most = min(most, num_layers // num_virtual_stages)
        return sorted({min(2**power, most) for power in range(most.bit_length() + 1)})
    return [p.num_partitions] if p.num_replicas != AUTO or p.num_partitions <= most else []


def numbers_of_replicas(p: hyperparams.Params, num_devices: int | None) -> list[int]:
    """Return the numbers of replicas to choose among. 'auto' tries each divisor of `num_devices` (None: only 1).

    Raises:
        ValueError: `num_partitions` is 'auto', and there are fewer devices than replicas.
    """
    if p.num_replicas == AUTO:
        return _divisors(num_devices or 1)
    if p.num_partitions == AUTO and num_devices is not None and p.num_replicas > num_devices:
        raise ValueError(f'num_replicas={p.num_replicas} is more than the {num_devices} devices: each replica needs a '
                         f'device. Set num_replicas to {num_devices} or less.')
    return [p.num_replicas]


def an_order(p: hyperparams.Params) -> dict[str, Any]:
    """Return values of `schedule` and `num_virtual_stages` to replace 'auto' while other fields are checked."""
    if p.num_virtual_stages == AUTO:
        number = schedules.NUM_VIRTUAL_STAGES.get(str(p.schedule), 1)
        return {'schedule': 'gpipe', 'num_virtual_stages': number or 2}
    return {'schedule': 'gpipe' if p.num_virtual_stages == 1 else 'circular'}


def best(candidates: list[plans.Plan]) -> plans.Plan:
    """Return the fastest plan that fits. If no plan fits, return the plan with the least memory."""
    fitting = [plan for plan in candidates if plan.fits]
    if not fitting:
        return min(candidates, key=lambda plan: max(plan.device_bytes))
    least = min(plan.step_time for plan in fitting)
    # Of equally fast plans, the best has the fewest devices. If several have equally few, the least memory decides.
    return min((plan for plan in fitting if plan.step_time <= plans.EQUALLY_FAST * least),
               key=lambda plan: (plan.setting.num_replicas * plan.schedule.num_devices, max(plan.device_bytes)))


def fewest_devices(setting: plans.Setting, p: hyperparams.Params, most_partitions: int) -> plans.Plan | None:
    """Return the fastest plan on the fewest devices that hold the model. None: `most_partitions` is too small."""
    p = p.Copy().Set(num_partitions=AUTO)
    for num_partitions in _numbers_of_partitions(p, len(setting.stack), most_partitions):
        found = _ranked(_combinations(setting, p, [num_partitions]), p)
        if found and found[0].fits:
            return found[0]
    return None


def find_plans(settings: list[plans.Setting], p: hyperparams.Params,
               num_devices: int | None = None) -> list[plans.Plan]:
    """Return the best plans that the params allow, best first.

    Args:
        settings: one `Setting` for each number of replicas to choose among.
        num_devices: number of devices; None: 'auto' takes as few devices as the model needs.

    Returns:
        At most `NUM_SHOWN` plans. If no plan fits, the first plan needs the least memory.

    Raises:
        ValueError: a field of `p` is wrong, or no plan is possible.
    """
    if p.num_partitions == AUTO and num_devices is None:
        fewest = fewest_devices(settings[0], p, _DEFAULT_MOST_PARTITIONS)
        if fewest:
            p, num_devices = p.Copy().Set(num_partitions=fewest.schedule.num_devices), fewest.schedule.num_devices
    combinations: list[_Combination] = []
    for setting in settings:
        most = num_devices // setting.num_replicas if num_devices else _DEFAULT_MOST_PARTITIONS
        combinations += _combinations(setting, p, _numbers_of_partitions(p, len(setting.stack), most))
    found = _ranked(combinations, p)
    if not found:
        raise ValueError(
            f'schedule={p.schedule!r} with partition_by={p.partition_by!r} does not go with any of the numbers of '
            "partitions and micro-batches that 'auto' tries. Set num_partitions and num_micro_batches to numbers.")
    return found


def _ranked(combinations, p):
    """Return at most `NUM_SHOWN` plans, best first."""
    found: list[plans.Plan] = []
    for each in sorted(combinations, key=lambda each: each.bound):
        times = sorted(plan.step_time for plan in found if plan.fits)[:NUM_SHOWN]
        if len(times) == NUM_SHOWN and each.bound > times[-1]:
            break  # all later plans are slower
        plan = _plan(each, p)
        found += [plan] if plan else []
    return _best_first(found)[:NUM_SHOWN]


def _best_first(found):
    if not found:
        return []
    first = best(found)
    others = sorted((plan for plan in found if plan is not first),
                    key=lambda plan: (not plan.fits, plan.step_time if plan.fits else max(plan.device_bytes)))
    return [first, *others]


def _cut_by(p):
    return 'time' if p.partition_by == AUTO else p.partition_by


def _combinations(setting, p, numbers_of_partitions):
    for num_partitions, num_micro_batches in itertools.product(
            numbers_of_partitions, numbers_of_micro_batches(p, setting.stack.batch_size)):
        size = micro_batches.most_rows(setting.stack.batch_size, num_micro_batches)
        bound = num_micro_batches * sum(time.seconds for time in setting.times(size)) / num_partitions
        for order, num_virtual_stages in _orders(p, num_partitions):
            sizes = num_partitions, num_micro_batches, num_virtual_stages
            if not _is_open(p) or 2 * math.prod(sizes) <= _MOST_ACTIONS:
                for recompute in RECOMPUTE if p.recompute == AUTO else [p.recompute]:
                    yield _Combination(bound, setting, order, sizes, recompute)


def _plan(combination, p):
    """Make the plan of a combination, or None if the settings exclude each other."""
    _, setting, order, sizes, recompute = combination
    try:
        schedule = schedules.make_schedule(order, *sizes)
    except ValueError:
        if not _is_open(p):
            raise
        return None
    if schedule.splits_backward and recompute == 'layer' or not _has_cut_for(schedule, p, len(setting.stack)):
        return None
    return plans.make_plan(setting, schedule, recompute, _cut_by(p))


def _is_open(p):
    return AUTO in (p.num_partitions, p.num_micro_batches, p.schedule, p.num_virtual_stages)


def _orders(p, num_partitions):
    """Yield pairs of a schedule and a number of stages per device."""
    names = [p.schedule]
    if p.schedule == AUTO:
        names = ['1f1b'] if num_partitions == 1 else sorted(schedules.SCHEDULES)
    for name in names:
        fixed = schedules.NUM_VIRTUAL_STAGES.get(name, 1) if isinstance(name, str) else 1
        if p.num_virtual_stages == AUTO:
            yield from ((name, number) for number in ([fixed] if fixed else _NUMBERS_OF_VIRTUAL_STAGES))
        elif p.schedule != AUTO or fixed in (None, p.num_virtual_stages):
            yield name, p.num_virtual_stages


def _has_cut_for(schedule, p, num_layers):
    """Return whether the layers can be cut for a schedule."""
    if AUTO not in (p.num_partitions, p.schedule, p.num_virtual_stages):
        return True
    try:
        validation.check_cut(_cut_by(p), num_layers, schedule.num_stages)  # a given cut fits one number of stages
    except ValueError:
        return False
    return schedule.num_stages <= num_layers


def _divisors(number):
    small = [divisor for divisor in range(1, math.isqrt(number) + 1) if number % divisor == 0]
    return sorted({*small, *(number // divisor for divisor in small)})
