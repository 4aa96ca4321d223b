"""What the planner predicts beside what is measured: peak memory of each partition, and relative times of a step.

    python benchmarks/planner_accuracy.py --model=decoder
    python benchmarks/planner_accuracy.py --model=amoebanet --what=time

Memory: each partition runs in a process of its own, which does the actions of its device and no others. What would come from
the partition before is made on the spot by a small source, and the gradients that would come back are those of a sum.
"""

import contextlib
import sys

import common
import isolated_partition
import models
from absl import app, flags

from lingpipe.distribute import local_devices
from lingpipe.pipeline import layer_profile
from lingpipe.pipeline import schedule as schedules
from lingpipe.planner import accelerators, layer_stack, plan

_WHAT = flags.DEFINE_enum('what', 'memory', ['memory', 'time'], 'What to compare.')
_PARTITIONS = flags.DEFINE_list('partitions', ['1', '2', '4'], 'Values of num_partitions.')
_COUNTS = flags.DEFINE_list('counts', ['2', '4', '8'], 'Values of num_micro_batches, of the same mini-batch.')
_SCHEDULES = flags.DEFINE_list('schedules', ['gpipe', '1f1b'], 'Values of schedule.')
_RECOMPUTE = flags.DEFINE_list('recompute', ['none', 'stage', 'layer'], 'Values of recompute.')
_NUM_STEPS = flags.DEFINE_integer('num_steps', 8, 'With --what=time: steps of each configuration, the first not counted.')
_MIB = 2**20


def planned(name, num_partitions, num_micro_batches, recompute):
    """Returns the `Plan` of the model for gradient descent without slots."""
    problem = models.problem()
    batch_size = problem.x.shape[0]
    stack = layer_stack.LayerStack(
        problem.layers, models.input_specs(problem), [-(-batch_size // num_micro_batches)])
    return plan.make_plan(plan.Setting(stack, accelerators.CPU, None, 0),
                          schedules.make_schedule(name, num_partitions, num_micro_batches), recompute)


def memory_row(name, num_partitions, num_micro_batches, recompute):
    """Returns a row of the table, and for each partition measured over predicted."""
    found = planned(name, num_partitions, num_micro_batches, recompute)
    predicted = [part.total / _MIB for part in found.partitions]
    measured = [_measured(name, num_partitions, num_micro_batches, recompute, index, found.ends) for index in range(num_partitions)]
    ratios = [got / expected for got, expected in zip(measured, predicted)]
    return [name, num_partitions, num_micro_batches, recompute, *map(_join, ('{:.0f}', '{:.0f}', '{:.2f}'),
                                                                    (predicted, measured, ratios))], ratios


def _measured(*arguments):
    with common.Process(isolated_partition.peak, *arguments) as process:
        return process.next()


def _join(form, values):
    return ' '.join(map(form.format, values))


def _memory():
    rows, ratios = [], []
    for num_partitions in map(int, _PARTITIONS.value):
        for num_micro_batches in map(int, _COUNTS.value):
            for recompute in _RECOMPUTE.value:
                for name in _SCHEDULES.value if num_partitions > 1 else ['gpipe']:
                    row, found = memory_row(name, num_partitions, num_micro_batches, recompute)
                    print(*row, file=sys.stderr, flush=True)
                    rows.append(row)
                    ratios += found
    within = sum(abs(ratio - 1) <= 0.15 for ratio in ratios) / len(ratios)
    common.report(
        common.markdown_table(
            ['schedule', 'K', 'M', 'recompute', 'predicted MiB', 'measured MiB', 'measured / predicted'], rows),
        f'{within:.0%} of {len(ratios)} partitions within 15 %, {min(ratios):.2f} to {max(ratios):.2f}; model {models.name()}.')


def _time():
    """Every configuration has a process; they take turns, so that what else happens on the machine meets all of them."""
    configurations = [(name, num_partitions, count, recompute) for num_partitions in map(int, _PARTITIONS.value)
                      for count in map(int, _COUNTS.value) for recompute in _RECOMPUTE.value
                      for name in (_SCHEDULES.value if num_partitions > 1 else ['gpipe'])]
    with contextlib.ExitStack() as stack:
        processes = [stack.enter_context(common.Process(isolated_partition.steps, *configuration))
                     for configuration in configurations]
        turns = [[process.next() for process in processes] for _ in range(_NUM_STEPS.value)][1:]
    measured = [min(seconds) for seconds in zip(*turns)]
    with common.Process(predicted_times, configurations) as process:
        predicted = process.next()
    relative = [(expected / predicted[0], got / measured[0]) for expected, got in zip(predicted, measured)]
    rows = [[*configuration, f'{1000 * got:.0f}', f'{pair[0]:.2f}', f'{pair[1]:.2f}', f'{pair[1] / pair[0]:.2f}']
            for configuration, got, pair in zip(configurations, measured, relative)]
    within = sum(abs(got / expected - 1) <= 0.1 for expected, got in relative[1:]) / (len(relative) - 1)
    common.report(
        common.markdown_table(['schedule', 'K', 'M', 'recompute', 'measured ms', 'predicted / first row', 'measured / first row',
                               'measured / predicted'], rows),
        f'{within:.0%} of {len(relative) - 1} relative times within 10 %; model {models.name()}; predictions from measured times '
        'of layers; fastest of the steps.')


def predicted_times(configurations):
    """Yields the list of predicted seconds, from times of layers that are measured on one virtual device."""
    local_devices.use_virtual_devices(1)
    problem, device = models.problem(), '/device:CPU:0'
    stack = layer_stack.LayerStack(
        problem.layers, models.input_specs(problem), [problem.x.shape[0] // int(count) for count in _COUNTS.value])
    known = {}

    def times(size):
        if size not in known:
            known[size] = layer_profile.profile_layers(stack.layer_params, stack.micro_batch_specs(size), device, None, stack.analyses)
        return known[size]

    setting = plan.Setting(stack, accelerators.CPU, None, 0, 'float32', times)
    yield [plan.make_plan(setting, schedules.make_schedule(name, num_partitions, count), recompute).step_time
           for name, num_partitions, count, recompute in configurations]


def main(unused_argv):
    (_memory if _WHAT.value == 'memory' else _time)()


if __name__ == '__main__':
    app.run(main)
