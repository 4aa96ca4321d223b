"""Seconds and memory of a training step: a pipeline on K cores against the same layers without one, on one core.

    python benchmarks/step_time.py --model=amoebanet --num_partitions=2 --num_micro_batches=4

Every configuration has a process of its own, held to its cores, and they take turns, a step each.
"""

import contextlib
import statistics
import time

import common
import models
from absl import app, flags

from lingpipe.distribute import local_devices

_NUM_PARTITIONS = flags.DEFINE_integer('num_partitions', 2, 'Partitions K, each on a device of one core.')
_RECOMPUTE = flags.DEFINE_list('recompute', ['none', 'stage'], "Values of GPipeLayer's field to measure.")
_NUM_STEPS = flags.DEFINE_integer('num_steps', 20, 'Measured steps of each; medians count.', lower_bound=1)

# Work of a micro-batch in units of its forward pass: F 1, B 2, and what is recomputed once more.
_RECOMPUTE_FACTORS = {'none': 3 / 3, 'stage': 4 / 3}


def plain_steps(num_micro_batches):
    """Measures the layers without a pipeline.

    Yields:
        `_measure`'s values.
    """
    problem = models.problem()
    pipe = models.build_pipe(problem)
    yield from _measure(models.plain_step(problem, pipe, num_micro_batches), problem, pipe)


def pipeline_steps(recompute):
    """Measures the pipeline.

    Yields:
        `_measure`'s values.
    """
    local_devices.use_virtual_devices(_NUM_PARTITIONS.value)
    problem = models.problem()
    pipe = models.build_pipe(problem, num_partitions=_NUM_PARTITIONS.value, recompute=recompute)
    yield from _measure(models.pipeline_step(problem, pipe), problem, pipe)


def _measure(step, problem, pipe):
    """Yields a dictionary of what need be measured only once, then the seconds of one step after the other."""
    loss, _ = step(problem.x, problem.y_true)
    loss = float(loss)
    common.reset_allocator_peak()
    step(problem.x, problem.y_true)
    yield {'loss': loss, 'peak': common.allocator_mib('peak'), 'flops': [part.flops for part in pipe.partitions]}
    while True:
        start = time.perf_counter()
        step(problem.x, problem.y_true)[0].numpy()
        yield time.perf_counter() - start


def ideal_ratio(flops, num_micro_batches, recompute):
    """Returns the step time that the schedule allows, over the time of the plain layers on one core.

    It is (M + K - 1) / (M K) (GPipe, arXiv 1811.06965, section 2.3), times the largest partition over the mean one,
    times the work with recomputation over the work without.

    Args:
        flops: list of the floating-point operations of each partition.
        num_micro_batches: M.
        recompute: 'none' or 'stage'.
    """
    num_partitions = len(flops)
    balance = max(flops) * num_partitions / sum(flops)
    bubble = (num_micro_batches + num_partitions - 1) / (num_micro_batches * num_partitions)
    return bubble * balance * _RECOMPUTE_FACTORS[recompute]


def _configurations():
    """Returns, for each row of the table: title, value of `recompute` or None, generator function, argument, cores."""
    num_micro_batches, num_partitions = flags.FLAGS.num_micro_batches, _NUM_PARTITIONS.value
    return [
        ('plain layers, whole batch', None, plain_steps, 1, 1),
        (f'plain layers, {num_micro_batches} micro-batches', None, plain_steps, num_micro_batches, 1),
        *[(f"{num_partitions} partitions, recompute='{recompute}'", recompute, pipeline_steps, recompute, num_partitions)
          for recompute in _RECOMPUTE.value]]


def _run(configurations):
    with contextlib.ExitStack() as stack:
        processes = [stack.enter_context(common.Process(function, argument, num_cores=num_cores))
                     for *_, function, argument, num_cores in configurations]
        once = [process.next() for process in processes]
        turns = [[process.next() for process in processes] for _ in range(_NUM_STEPS.value)]
    return once, [statistics.median(seconds) for seconds in zip(*turns)]


def _row(configuration, once, seconds, plain_seconds):
    title, recompute, *_, num_cores = configuration
    ideals = ['', '']
    if recompute is not None:
        ideal = ideal_ratio(once['flops'], flags.FLAGS.num_micro_batches, recompute)
        ideals = [f'{ideal:.3f}', f'{seconds / plain_seconds / ideal:.2f}']
    return [title, num_cores, f'{seconds:.4f}', f'{seconds / plain_seconds:.3f}', *ideals, f'{once["peak"]:.1f}',
            f'{once["loss"]:.6f}']


def main(unused_argv):
    configurations = _configurations()
    once, seconds = _run(configurations)
    plain_seconds = min(seconds[:2])
    header = ['configuration', 'cores', 'seconds', 'of plain', 'ideal', 'measured/ideal', 'peak MiB', 'loss']
    rows = [_row(*columns, plain_seconds) for columns in zip(configurations, once, seconds)]
    common.report(
        common.markdown_table(header, rows),
        "Seconds: median of a step. 'of plain': over the faster of the two plain rows. 'ideal': what the schedule allows. "
        "'peak': TensorFlow's allocator, weights included, all devices together.")


if __name__ == '__main__':
    app.run(main)
