"""Prints how long each schedule waits and what it keeps, by simulation; no device is needed.

    python -m benchmarks.speed.schedules --num_devices=4 --num_micro_batches=8,16
    python -m benchmarks.speed.schedules --schedule=zb_h1 --draw
"""

import dataclasses

from absl import app, flags

from benchmarks.support import common
from lingpipe import schedules

_SCHEDULES = flags.DEFINE_list(
    'schedule', list(schedules.SCHEDULES), 'Names of schedules, or paths of CSV files; all names by default.')
_NUM_DEVICES = flags.DEFINE_integer('num_devices', 4, 'Devices K.', lower_bound=1)
_NUM_MICRO_BATCHES = flags.DEFINE_list('num_micro_batches', ['8'], 'Micro-batches M; several give a row each.')
_NUM_VIRTUAL_STAGES = flags.DEFINE_list(
    'num_virtual_stages', ['2'], 'Stages V on each device, for schedules that interleave; several give a row each.')
_FORWARD = flags.DEFINE_float(
    'forward', 1.0, 'Time of F of one micro-batch through all stages of a device.', lower_bound=0.0)
_BACKWARD = flags.DEFINE_float('backward', 1.0, 'Time of the gradients by inputs, likewise.', lower_bound=0.0)
_WEIGHT_GRADIENT = flags.DEFINE_float(
    'weight_gradient', 1.0, 'Time of the gradients by weights, likewise.', lower_bound=0.0)
_RECOMPUTE = flags.DEFINE_float('recompute', 0.0, 'Time to compute the activations again before a B.', lower_bound=0.0)
_TRANSFER = flags.DEFINE_float('transfer', 0.0, 'Time of a boundary tensor between two devices.', lower_bound=0.0)
_DRAW = flags.DEFINE_boolean('draw', False, 'Whether to draw the schedules as well.')


def _simulate(name, num_micro_batches, num_virtual_stages):
    schedule = schedules.make_schedule(name, _NUM_DEVICES.value, num_micro_batches, num_virtual_stages)
    costs = schedules.StageCosts(*[flag.value for flag in (_FORWARD, _BACKWARD, _WEIGHT_GRADIENT, _RECOMPUTE)])
    per_stage = costs.scaled(schedule.num_devices / schedule.num_stages)
    stages = [dataclasses.replace(per_stage, transfer=_TRANSFER.value)] * schedule.num_stages
    return schedules.for_costs(schedule, stages).simulate(stages)


def _timelines():
    """Yield one timeline for each schedule, V and M."""
    for name in _SCHEDULES.value:
        fixed = 1 if name.endswith('.csv') else schedules.NUM_VIRTUAL_STAGES[name]
        for num_virtual_stages in [fixed] if fixed else map(int, _NUM_VIRTUAL_STAGES.value):
            for num_micro_batches in map(int, _NUM_MICRO_BATCHES.value):
                yield _simulate(name, num_micro_batches, num_virtual_stages)


def _row(timeline):
    schedule = timeline.schedule
    return [
        schedule.name, schedule.num_virtual_stages, schedule.num_micro_batches, f'{timeline.seconds:g}',
        f'{timeline.idle:g}', f'{timeline.bubble_fraction:.1%}',
        f'{timeline.idle / (timeline.seconds - timeline.idle):.3f}', _listed(schedule.peak_memory()),
        _listed(schedule.peak_memory(activations=0.0, weight_gradient_inputs=1.0)) if schedule.splits_backward else '']


def _listed(numbers):
    return ' '.join(f'{number:g}' for number in numbers)


def main(unused_argv):
    timelines = list(_timelines())
    print(common.Table(
        ['schedule', 'V', 'M', 'step', 'bubble', 'of step', 'over ideal', 'peak activations', 'kept for W'],
        [_row(timeline) for timeline in timelines]))
    for timeline in timelines if _DRAW.value else []:
        print(f'\n{timeline.schedule.name}\n{timeline.draw()}')


if __name__ == '__main__':
    app.run(main)
