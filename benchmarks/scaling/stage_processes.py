"""Seconds of a training step whose partitions are processes, as on several hosts, over one process that has all layers.

    python -m benchmarks.scaling.stage_processes --model=decoder --num_processes=2,4 --schedules=1f1b \\
        --num_micro_batches=32

Every process is a server on loopback and has one thread. One more reads the input and lays out the step, as the chief
does. The configurations take turns, a step each.
"""

import contextlib
import os
import statistics

from absl import app, flags

from benchmarks.scaling import server_processes
from benchmarks.speed import step_time
from benchmarks.support import common, models

_NUM_PROCESSES = flags.DEFINE_list('num_processes', ['2', '4'], 'Numbers of processes, a partition in each.')
_HEADER = ['processes', 'schedule', 'cores', 'seconds', 'of the best possible', 'times as fast as one', 'loss']


def pipeline_steps(num_processes, schedule):
    """Measures the pipeline over processes.

    Yields:
        What `step_time.measure` does.
    """
    with server_processes.devices(num_processes) as devices:
        problem = models.problem()
        pipe = models.build_pipe(
            problem, num_partitions=num_processes, schedule=schedule, recompute='none', devices=devices)
        yield from step_time.measure(models.pipeline_step(problem, pipe), problem, pipe)


def best_possible(ideal, num_processes, num_cores):
    """Returns the least time of a step over that of one process: what the schedule allows, or the cores.

    Args:
        ideal: what the schedule allows, if every process has a core.
        num_processes: number of processes.
        num_cores: number of cores.
    """
    return max(ideal, 1 / min(num_processes, num_cores))


def _row(num_processes, schedule, once, seconds, plain_seconds):
    num_cores = min(num_processes, len(os.sched_getaffinity(0)))
    best = plain_seconds * best_possible(once['ideal'], num_processes, num_cores)
    return [num_processes, schedule, num_cores, f'{seconds:.4f}', f'{seconds / best:.2f}',
            f'{plain_seconds / seconds:.2f}',
            f'{once["loss"]:.6f}']


def main(unused_argv):
    settings = [(int(count), schedule) for count in _NUM_PROCESSES.value for schedule in step_time.SCHEDULES.value]
    with contextlib.ExitStack() as stack:
        plain = stack.enter_context(common.Process(step_time.plain_steps, 1, num_cores=1))
        processes = [plain, *[stack.enter_context(common.Process(pipeline_steps, *setting)) for setting in settings]]
        once = [process.next() for process in processes]
        turns = [[process.next() for process in processes] for _ in range(step_time.NUM_STEPS.value)]
    plain_seconds, *seconds = [statistics.median(column) for column in zip(*turns)]
    rows = [[1, '', 1, f'{plain_seconds:.4f}', '', '1.00', f'{once[0]["loss"]:.6f}'],
            *[_row(*setting, *columns, plain_seconds) for setting, *columns in zip(settings, once[1:], seconds)]]
    common.report(common.markdown_table(_HEADER, rows),
                  "Seconds: median of a step. 'Of the best possible': over what the schedule allows on as many cores.")


if __name__ == '__main__':
    app.run(main)
