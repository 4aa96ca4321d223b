"""A table of the best plans that 'auto' found, and why the others lost."""

from collections.abc import Sequence

from lingpipe import text_tables
from lingpipe.planner import picture
from lingpipe.planner.plans import EQUALLY_FAST, Plan
from lingpipe.schedules.timeline import COMPUTE, RECOMPUTE, StepTimes

_MIB = 2**20


def table(found: Sequence[Plan]) -> str:
    """Returns a table with one row per plan, the chosen one first.

    Args:
        found: list of `Plan`s, best first.
    """
    header = [
        'K', 'R', 'M', 'schedule', 'V', 'recompute', 'layers', 'step ms', 'bubble', 'fullest MiB', 'verdict']
    return text_tables.table(header, [_row(plan, found[0]) for plan in found])


def _row(plan, first):
    schedule = plan.schedule
    return [
        schedule.num_devices, plan.setting.num_replicas, schedule.num_micro_batches, schedule.name,
        f'{schedule.num_stages / schedule.num_devices:g}', plan.recompute,
        ' '.join(str(len(part.layer_names)) for part in plan.partitions), f'{1e3 * plan.step_time:.4g}',
        f'{plan.timeline.bubble_fraction:.1%}', max(plan.device_bytes) / _MIB,
        'chosen' if plan is first else reason(plan, first)]


def reason(plan: Plan, first: Plan) -> str:
    """Returns a few words that say why a plan is not the first.

    Args:
        plan: `Plan`.
        first: the `Plan` that was chosen.
    """
    if not plan.fits:
        return f'lacks {picture.to_text(max(plan.device_bytes) - plan.setting.memory_limit)}'
    if plan.step_time <= EQUALLY_FAST * first.step_time:
        more = 'more devices' if _num_devices(plan) > _num_devices(first) else 'more memory'
        return f'as fast, but needs {more}'
    slower = plan.step_time / first.step_time - 1
    mine, its = _parts(plan), _parts(first)
    what = max(mine, key=lambda name: mine[name] - its[name])
    return f'{slower:.1%} slower: {what} {1e3 * (mine[what] - its[what]):.3g} ms longer'


def _num_devices(plan):
    return plan.setting.num_replicas * plan.schedule.num_devices


def _parts(plan):
    """Returns the seconds of each kind of work, averaged over all devices."""
    step = StepTimes(plan.schedule, plan.timeline.spans)
    return {'a device computes': step.busy(COMPUTE), 'it recomputes': step.busy((RECOMPUTE,)), 'it waits': step.idle,
            'the update takes': max(plan.timeline.updates), 'sums over replicas take': plan.summing_time}
