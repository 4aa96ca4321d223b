"""Compares what 'auto' chooses for two cores with all settings that it chose among, by measuring each.

    python -m benchmarks.speed.auto_choice --model=decoder --counts=4,8,16
    python -m benchmarks.speed.auto_choice --model=amoebanet --counts=2,4,8

The planner measures layers on one core and simulates steps. Then each setting trains in a separate process, bound to
two cores; the processes take turns, a measured step each. Processes differ by several per cent, so --rounds starts new
ones.
"""

import contextlib
import statistics
from typing import NamedTuple

from absl import app, flags

import lingpipe
from benchmarks.support import common, models
from lingpipe import schedules
from lingpipe.devices import device_kinds
from lingpipe.pipeline import gpipe_layer

_NUM_CORES = 2
_COUNTS = flags.DEFINE_list('counts', ['4', '8', '16'], 'Micro-batches M of a step to choose among, in all replicas.')
_SCHEDULES = flags.DEFINE_list('schedules', sorted(schedules.SCHEDULES), "Values of GPipeLayer's field.")
_RECOMPUTE = flags.DEFINE_list('recompute', ['none', 'stage'], "Values of GPipeLayer's field.")
_NUM_STEPS = flags.DEFINE_integer('num_steps', 5, 'Measured steps of each process.', lower_bound=1)
_ROUNDS = flags.DEFINE_integer('rounds', 1, 'Processes of each setting; the median of their medians counts.', lower_bound=1)
_GOAL = 0.03


class Choice(NamedTuple):
    """Values of the fields that are chosen together; `num_micro_batches` is that of a replica."""

    num_partitions: int
    num_replicas: int
    num_micro_batches: int
    schedule: str
    num_virtual_stages: int
    recompute: str


def choices():
    """Return the list of all `Choice`s that use both cores."""
    counts = list(map(int, _COUNTS.value))
    replicas = [Choice(1, _NUM_CORES, count // _NUM_CORES, 'gpipe', 1, recompute)
                for count in counts for recompute in _RECOMPUTE.value]
    return replicas + [
        Choice(_NUM_CORES, 1, count, name, schedules.NUM_VIRTUAL_STAGES[name] or 2, recompute)
        for count in counts for name in _SCHEDULES.value for recompute in _RECOMPUTE.value]


def plan():
    """Plans for as many devices as there are cores, with layers measured on the one core that this process has.

    Yields:
        The `Choice`, its cut, and the simulated seconds.
    """
    problem, found = models.problem(), []
    p = gpipe_layer.GPipeLayer.Params().Set(name='pipe', layers=problem.layers, num_optimizer_slots=0)
    for count in map(int, _COUNTS.value):
        for num_replicas in (1, _NUM_CORES):
            open_fields = {'schedule': 'auto', 'num_virtual_stages': 'auto'} if num_replicas == 1 else {}
            planned = lingpipe.plan(
                p.Copy().Set(num_partitions=_NUM_CORES // num_replicas, num_replicas=num_replicas, partition_by='auto',
                             num_micro_batches=count // num_replicas, recompute='auto', **open_fields),
                input_specs=models.input_specs(problem), num_devices=_NUM_CORES, profile_device='CPU:0')
            found.append(planned)
    best = min(found, key=lambda planned: planned.plan.step_time)
    fields = best.params
    yield [getattr(fields, field) for field in Choice._fields], fields.partition_by, best.plan.step_time


def steps(choice, partition_by):
    """Measure training steps of one `Choice`.

    Yields:
        Seconds of one step after the other.
    """
    device_kinds.use_virtual_devices(_NUM_CORES)
    problem = models.problem()
    pipe = models.build_pipe(problem, partition_by=partition_by, **Choice(*choice)._asdict())
    step = models.pipeline_step(problem, pipe)
    yield from models.step_seconds(step, problem)


def _planned():
    fields, ends, seconds = common.measured(plan, num_cores=1)
    return Choice(*fields), tuple(ends), seconds


def _measured(settings):
    """Return the seconds of each pair of a `Choice` and a cut."""
    rounds = [_round(settings) for _ in range(_ROUNDS.value)]
    return [statistics.median(medians) for medians in zip(*rounds)]


def _round(settings):
    """Return the median seconds of each pair in one process."""
    with contextlib.ExitStack() as stack:
        processes = [stack.enter_context(common.Process(steps, list(choice), cut, num_cores=_NUM_CORES))
                     for choice, cut in settings]
        return common.medians_in_turns(processes, _NUM_STEPS.value)


def main(unused_argv):
    chosen, ends, simulated = _planned()
    chosen_setting = chosen, ends if chosen.num_partitions > 1 else 'flops'  # one partition has one cut
    settings = list(dict.fromkeys([*((choice, 'flops') for choice in choices()), chosen_setting]))
    found = sorted(zip(_measured(settings), settings), key=lambda pair: pair[0])
    best, own = found[0][0], next(seconds for seconds, setting in found if setting == chosen_setting)
    rows = [[f'{seconds:.3f}', f'{seconds / best:.3f}', *map(str, choice), str(cut) if cut != 'flops' else cut]
            for seconds, (choice, cut) in found]
    reached = 'reached' if own <= (1 + _GOAL) * best else 'missed'
    common.report(
        common.Table(['seconds', 'of best', 'K', 'R', 'M', 'schedule', 'V', 'recompute', 'partition_by'], rows),
        f"'auto' chose {tuple(chosen)}, {simulated:.3f} s simulated, {own:.3f} s measured, {own / best - 1:.1%} above the "
        f'best. Goal {_GOAL:.0%}: {reached}.')


if __name__ == '__main__':
    app.run(main)
