"""A plan as a person reads it: a table of the partitions, a few numbers, and one sentence."""

from lingpipe import text_tables
from lingpipe.planner import depth, picture
from lingpipe.planner.plans import KINDS

_MIB = 2**20


def describe(plan, device_name, alternative=None):
    """Describes a plan.

    Args:
        plan: `Plan`.
        device_name: what a device is called, such as 'v3'.
        alternative: `Plan` on more devices that fits where `plan` does not, or None.

    Returns:
        Text with a table, memory in MiB.
    """
    return '\n\n'.join([partition_table(plan), _numbers(plan), sentence(plan, device_name, alternative)])


def partition_table(plan):
    """Returns the table with one row a partition."""
    limit = plan.setting.memory_limit
    header = ['partition', 'device', 'from .. to', 'layers', 'parameters', 'GFLOPs', *KINDS, 'total MiB']
    rows = [[index, plan.schedule.device_of(index), _span(part.layer_names), len(part.layer_names), part.num_parameters,
             part.flops / 1e9, *(getattr(part, kind) / _MIB for kind in KINDS), part.total / _MIB]
            for index, part in enumerate(plan.partitions)]
    if limit:
        header += ['limit MiB', 'fits']
        for index, row in enumerate(rows):
            used = plan.device_bytes[plan.schedule.device_of(index)]
            row += [limit / _MIB, 'yes' if used <= limit else f'no, {picture.to_text(used - limit)} over']
    return text_tables.table(header, rows)


def sentence(plan, device_name, alternative=None):
    """Returns what a person wants to know first."""
    devices = f'{_replicas(plan)}{plan.schedule.num_devices} × {device_name}'
    if plan.setting.memory_limit is None:
        return f'Needs {picture.to_text(max(plan.device_bytes))} on the fullest of {devices} with {_how(plan)}.'
    if plan.fits:
        return f'Fits on {devices} with {_how(plan)}{_largest(plan, device_name)}.'
    too_much = picture.to_text(max(plan.device_bytes) - plan.setting.memory_limit)
    remedy = (f'It fits on {alternative.schedule.num_devices} × {device_name} with {_how(alternative)}.' if alternative else
              'Use smaller micro-batches, recompute=\'layer\', or smaller layers: more partitions do not help.')
    return f'Does not fit on {devices} with {_how(plan)}: the fullest lacks {too_much}{_largest(plan, device_name)}. {remedy}'


def _numbers(plan):
    num_parameters = sum(part.num_parameters for part in plan.partitions)
    source = ('measured times of layers' if plan.setting.layer_times else
              f"at {plan.setting.accelerator.name}'s peaks, the least possible")
    devices = 'the devices of each replica' if plan.setting.num_replicas > 1 else 'all devices'
    return (f'{num_parameters:,} parameters, {picture.to_text(sum(plan.device_bytes))} on {devices}\n'
            f'Step {_seconds(plan.step_time)} ({source}), {plan.throughput:,.4g} examples/s, '
            f'bubble {plan.timeline.bubble_fraction:.1%}, {plan.speedup:.2f} times as fast as one device without a limit')


def _replicas(plan):
    count = plan.setting.num_replicas
    return f'{count} replicas of ' if count > 1 else ''


def _how(plan):
    limit = f', partition_by={plan.ends}' if plan.is_cut_by_memory else ''
    schedule = '' if plan.schedule.name == 'gpipe' else f', schedule={plan.schedule.name}'
    return f'M={plan.schedule.num_micro_batches}, recompute={plan.recompute}{schedule}{limit}'


def _largest(plan, device_name):
    found = depth.largest_depth(plan)
    if found is None:
        return ''
    return (f'; the largest that fits on 1 × {device_name} is L={found.largest} (L: how many {found.kind} repeat, here '
            f'{found.num_now})')


def _seconds(seconds):
    return f'{seconds:.3g} s' if seconds >= 1 else f'{1000 * seconds:.3g} ms'


def _span(names):
    return names[0] if len(names) == 1 else f'{names[0]} .. {names[-1]}'
