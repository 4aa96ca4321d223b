"""What the planner predicts beside what is measured: peak memory of each partition, and relative times of a step.

    python -m benchmarks.memory.planner_accuracy --model=decoder
    python -m benchmarks.memory.planner_accuracy --model=amoebanet --what=time

Memory: each partition runs in a process of its own, which does the actions of its device and no others. A small source
layer makes the inputs from the previous partition, and the next partition is replaced by a sum.
Time: see `planned_times.py`.
"""

import sys

from absl import app, flags

from benchmarks.memory import isolated_partition, planned_times
from benchmarks.support import common, models
from lingpipe import schedules
from lingpipe.partition import accelerators
from lingpipe.pipeline import layer_sources
from lingpipe.planner import plans, resolution

_WHAT = flags.DEFINE_enum('what', 'memory', ['memory', 'time'], 'What to compare.')
_PARTITIONS = flags.DEFINE_list('partitions', None, 'Values of num_partitions; 1, 2, 4 for memory, 1, 2 for time.')
_COUNTS = flags.DEFINE_list(
    'counts', None, 'Values of num_micro_batches, of the same mini-batch; 2, 4, 8 for memory, 4, 8 for time.')
_SCHEDULES = flags.DEFINE_list('schedules', ['gpipe', '1f1b'], 'Values of schedule.')
_RECOMPUTE = flags.DEFINE_list('recompute', ['none', 'stage', 'layer'], 'Values of recompute.')
_NUM_STEPS = flags.DEFINE_integer(
    'num_steps', 8, 'With --what=time: measured steps of each configuration.', lower_bound=1)
_DEFAULTS = {'memory': {'partitions': (1, 2, 4), 'counts': (2, 4, 8)}, 'time': {'partitions': (1, 2), 'counts': (4, 8)}}
_MIB = 2**20


def planned(name, num_partitions, num_micro_batches, recompute):
    """Return the `Plan` of the model for gradient descent without slots."""
    problem = models.problem()
    batch_size = problem.x.shape[0]
    stack = resolution.LayerStack(
        layer_sources.LayersOfParams(problem.layers), models.input_specs(problem), [-(-batch_size // num_micro_batches)])
    return plans.make_plan(plans.Setting(stack, accelerators.CPU, None, 0),
                          schedules.make_schedule(name, num_partitions, num_micro_batches), recompute)


def memory_row(name, num_partitions, num_micro_batches, recompute):
    """Return a row of the table, and for each partition measured over predicted."""
    found = planned(name, num_partitions, num_micro_batches, recompute)
    predicted = [part.total / _MIB for part in found.partitions]
    measured = [_measured(name, num_partitions, num_micro_batches, recompute, index, found.ends)
                for index in range(num_partitions)]
    ratios = [got / expected for got, expected in zip(measured, predicted)]
    return [name, num_partitions, num_micro_batches, recompute, *map(_join, ('{:.0f}', '{:.0f}', '{:.2f}'),
                                                                    (predicted, measured, ratios))], ratios


def _measured(*arguments):
    peak = common.measured(isolated_partition.peak, *arguments, environment=common.COUNTING_MEMORY)
    if peak is None:
        raise SystemExit('TensorFlow counts no memory on this processor. Run --what=memory on another, or --what=time '
                         'here.')
    return peak


def _join(form, values):
    return ' '.join(map(form.format, values))


def _memory():
    rows, ratios = [], []
    for num_partitions in _numbers(_PARTITIONS):
        for num_micro_batches in _numbers(_COUNTS):
            for recompute in _RECOMPUTE.value:
                for name in _SCHEDULES.value if num_partitions > 1 else ['gpipe']:
                    row, found = memory_row(name, num_partitions, num_micro_batches, recompute)
                    print(*row, file=sys.stderr, flush=True)
                    rows.append(row)
                    ratios += found
    within = sum(abs(ratio - 1) <= 0.15 for ratio in ratios) / len(ratios)
    common.report(
        common.Table(
            ['schedule', 'K', 'M', 'recompute', 'predicted MiB', 'measured MiB', 'measured / predicted'], rows),
        f'{within:.0%} of {len(ratios)} partitions within 15 %, {min(ratios):.2f} to {max(ratios):.2f}; model '
        f'{models.name()}. {common.MEMORY_NOTE}')


def _time():
    configurations = [(name, num_partitions, count, recompute) for num_partitions in _numbers(_PARTITIONS)
                      for count in _numbers(_COUNTS) for recompute in _RECOMPUTE.value
                      for name in (_SCHEDULES.value if num_partitions > 1 else ['gpipe'])]
    rows, ratios = planned_times.relative_rows(
        configurations, *planned_times.predicted_and_measured(configurations, _NUM_STEPS.value))
    within = sum(abs(ratio - 1) <= 0.1 for ratio in ratios) / max(len(ratios), 1)
    common.report(
        common.Table(planned_times.HEADER, rows),
        f'{within:.0%} of {len(ratios)} relative times within 10 %, {min(ratios, default=1):.2f} to '
        f'{max(ratios, default=1):.2f}; model {models.name()}; predictions from measured times of layers; fastest of '
        f'{_NUM_STEPS.value} steps.')


def _numbers(flag):
    return [int(text) for text in flag.value or _DEFAULTS[_WHAT.value][flag.name]]


def main(unused_argv):
    (_memory if _WHAT.value == 'memory' else _time)()


if __name__ == '__main__':
    app.run(main)
