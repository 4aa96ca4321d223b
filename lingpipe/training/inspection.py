"""Descriptions of a plan, and of a model's layers and partitions."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from lingpipe import hyperparams, wording
from lingpipe.partition import accelerators, balancing
from lingpipe.pipeline import layer_sources, validation
from lingpipe.planner import plans
from lingpipe.planner.plans import KINDS

_UNMEASURED = (
    "\n\npartition_by='time' measures the layers when training starts. Nothing was measured here: the cut above is "
    "that of partition_by='flops'.")
_MIB = 2**20
_NEARLY_FULL = 0.9  # of a device's memory
_LEAST_GFLOPS = 10  # smaller numbers are shown as MFLOPs


def model_analysis(body_params: hyperparams.Params, input_spec: Any, devices: list[str]) -> str:
    """Return a table of layers and a table of partitions. No weight is allocated, and no layer runs."""
    by_time = body_params.partition_by == 'time'
    p = body_params.Copy().Set(partition_by='flops') if by_time else body_params
    schedule = validation.make_schedule(p)
    source = layer_sources.of_params(p)
    layers = source.analyses(input_spec)
    cut = balancing.cut(p, schedule, source, layers, input_spec, devices)
    devices = [devices[schedule.device_of(stage)] for stage in range(schedule.num_stages)]
    return describe(layers, cut.describe(layers, devices)) + (_UNMEASURED if by_time else '')


def describe(layers: list, partitions: list) -> str:
    """Return a table of analysed layers, a table of their partitions, and a line of totals."""
    place = {name: (index, part.device) for index, part in enumerate(partitions) for name in part.layer_names}
    titles, counts = balancing.parameter_columns(layers)
    rows = [[layer.name, layer.kind, _shapes(layer.outputs), *numbers, layer.flops.total / 1e6,
             place[layer.name][0], balancing.short_device(place[layer.name][1])]
            for layer, *numbers in zip(layers, *counts)]
    gflops = sum(layer.flops.total for layer in layers) / 1e9
    header = ['layer', 'kind', 'output of one example', *titles, 'MFLOPs', 'partition', 'device']
    return '\n\n'.join([
        wording.table(header, rows), balancing.table(partitions),
        f'{balancing.parameters_in_words(layers)}, {gflops:,.3f} GFLOPs an example (forward)'])


def _shapes(outputs: Any) -> str:
    return ', '.join(str(tuple(spec.shape[1:])) for spec in tf.nest.flatten(outputs))


def describe_plan(plan: plans.Plan, device_name: str | None, alternative: plans.Plan | None = None) -> str:
    """Return a text: `partition_table`, memory, step time, and `sentence`, which suggests `alternative` if needed."""
    return '\n\n'.join([partition_table(plan), _numbers(plan), sentence(plan, device_name, alternative)])


def partition_table(plan: plans.Plan) -> str:
    """Return a table with one row for each partition."""
    limit = plan.setting.memory_limit
    titles, counts = balancing.parameter_columns(plan.partitions)
    most_flops = max(part.flops for part in plan.partitions)
    unit, size = ('GFLOPs', 1e9) if most_flops >= _LEAST_GFLOPS * 1e9 else ('MFLOPs', 1e6)
    header = ['partition', 'device', 'from .. to', 'layers', *titles, f'{unit} an example', *KINDS, 'total MiB']
    rows = [[index, plan.schedule.device_of(index), balancing.span(part.layer_names), len(part.layer_names),
             *numbers, part.flops / size, *(getattr(part, kind) / _MIB for kind in KINDS), part.total / _MIB]
            for index, (part, *numbers) in enumerate(zip(plan.partitions, *counts))]
    if limit:
        header += ['limit MiB', 'fits']
        for index, row in enumerate(rows):
            used = plan.device_bytes[plan.schedule.device_of(index)]
            row += [limit / _MIB, 'yes' if used <= limit else f'no, {plans.to_text(used - limit)} over']
    return wording.table(header, rows)


def sentence(plan: plans.Plan, device_name: str | None, alternative: plans.Plan | None = None) -> str:
    """Return a sentence that says whether a plan fits. If `plan` does not fit, suggest `alternative`."""
    limit = plan.setting.memory_limit

    def devices(count: int) -> str:
        if device_name:
            return f'{count} × {device_name}'
        return f'{count} device{"s" * (count > 1)}' + (f' of {plans.to_text(limit)}' if limit else '')

    count = plan.setting.num_replicas
    where = (f'{count} replicas of ' if count > 1 else '') + devices(plan.schedule.num_devices)
    if limit is None:
        return f'Needs {plans.to_text(max(plan.device_bytes))} on the fullest of {where} with {_how(plan)}.'
    if plan.fits:
        return f'Fits on {where} with {_how(plan)}.{_how_full(max(plan.device_bytes) / limit)}'
    too_much = plans.to_text(max(plan.device_bytes) - limit)
    remedy = (f'It fits on {devices(alternative.schedule.num_devices)} with {_how(alternative)}.'
              if alternative else
              'Use smaller micro-batches, recompute=\'layer\', or smaller layers: more partitions do not help.')
    return f'Does not fit on {where} with {_how(plan)}: the fullest lacks {too_much}. {remedy}'


def _how_full(part: float) -> str:
    if part <= _NEARLY_FULL:
        return ''
    return (f' The fullest is {part:.0%} full: what the runtime needs beside the tensors may not fit. Plan with less '
            'device_memory, or recompute more.')


def _numbers(plan: plans.Plan) -> str:
    source = ('measured times of layers' if plan.setting.layer_times else
              f"at {plan.setting.accelerator.name}'s peaks: a lower bound")
    devices = 'the devices of each replica' if plan.setting.num_replicas > 1 else 'all devices'
    parameters = balancing.parameters_in_words(plan.partitions)
    step = f'Step {_seconds(plan.step_time)} ({source}), {plan.throughput:,.4g} examples/s, '
    return (f'{parameters}, {plans.to_text(sum(plan.device_bytes))} on {devices}\n'
            f'{step if _has_times(plan) else "Step: "}bubble {plan.timeline.bubble_fraction:.1%}, {plan.speedup:.2f} '
            f'times as fast as one device with enough memory{_about(plan)}')


def _has_times(plan: plans.Plan) -> bool:
    """Return whether to show a plan's times in seconds."""
    # Times for the assumed CPU core only serve to compare plans.
    return bool(plan.setting.layer_times) or plan.setting.accelerator is not accelerators.CPU


def _about(plan: plans.Plan) -> str:
    accelerator = plan.setting.accelerator
    if not _has_times(plan):
        return '\nSeconds need an accelerator, such as a100'
    about = plan.about_time
    if about is None:
        unknown = f'\nHow much longer real steps take is not known: none were measured on {accelerator.name}'
        return '' if plan.setting.layer_times else unknown
    error = accelerator.achieved.error
    examples = plan.setting.num_replicas * plan.setting.stack.batch_size / about
    return (f'\nAbout {_seconds(about)} ({_seconds(about / (1 + error))} to {_seconds(about / (1 - error))}) at '
            f'speeds measured on {accelerator.name}, {examples:,.4g} examples/s')


def _how(plan: plans.Plan) -> str:
    limit = f', partition_by={plan.ends}' if plan.is_cut_by_memory else ''
    schedule = '' if plan.schedule.name == 'gpipe' else f', schedule={plan.schedule.name}'
    return f'M={plan.schedule.num_micro_batches}, recompute={plan.recompute}{schedule}{limit}'


def _seconds(seconds: float) -> str:
    return f'{seconds:.3g} s' if seconds >= 1 else f'{1000 * seconds:.3g} ms'


def comparison(found: Sequence[plans.Plan]) -> str:
    """Return a table of the plans in `found`, which begins with the best plan."""
    step = 'step ms' if _has_times(found[0]) else 'relative step'
    header = ['K', 'R', 'M', 'schedule', 'V', 'recompute', 'layers', step, 'bubble', 'fullest MiB', 'verdict']
    return wording.table(header, [_compared(plan, found[0]) for plan in found])


def _compared(plan: plans.Plan, first: plans.Plan) -> list[str | float]:
    schedule = plan.schedule
    step = f'{1e3 * plan.step_time:.4g}' if _has_times(plan) else f'{plan.step_time / first.step_time:.2f}'
    return [
        schedule.num_devices, plan.setting.num_replicas, schedule.num_micro_batches, schedule.name,
        f'{schedule.num_stages / schedule.num_devices:g}', plan.recompute,
        ' '.join(str(len(part.layer_names)) for part in plan.partitions), step,
        f'{plan.timeline.bubble_fraction:.1%}', max(plan.device_bytes) / _MIB,
        'chosen' if plan is first else _verdict(plan, first)]


def _verdict(plan: plans.Plan, first: plans.Plan) -> str:
    if not plan.fits:
        return f'lacks {plans.to_text(max(plan.device_bytes) - (plan.setting.memory_limit or 0))}'
    if plan.step_time <= plans.EQUALLY_FAST * first.step_time:
        return 'as fast, but needs more'
    return f'{plan.step_time / first.step_time - 1:.1%} slower'
