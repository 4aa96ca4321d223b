"""Seconds and memory of a training step: a pipeline on K cores against the same layers without one, on one core.

    python -m benchmarks.speed.step_time --model=decoder --num_partitions=2 --schedules=gpipe,1f1b

Every configuration has its own process, bound to its cores. The processes take turns, a measured step each.
"""

import contextlib

from absl import app, flags

from benchmarks.support import common, models
from lingpipe import schedules
from lingpipe.devices import device_kinds
from lingpipe.partition import layer_profile

_NUM_PARTITIONS = flags.DEFINE_integer('num_partitions', 2, 'Partitions K, each on a device of one core.')
_RECOMPUTE = flags.DEFINE_list('recompute', ['none', 'stage'], "Values of GPipeLayer's field to measure.")
SCHEDULES = flags.DEFINE_list('schedules', ['gpipe'], "Values of GPipeLayer's field to measure.")
_JIT_COMPILE = flags.DEFINE_list('jit_compile', ['false'], "Values of GPipeLayer's field to measure: false, true.")
NUM_STEPS = flags.DEFINE_integer('num_steps', 20, 'Measured steps of each; medians count.', lower_bound=1)

# A backward pass does twice the work of the forward pass; a split one half of it by inputs, half by weights.
_BACKWARD, _WEIGHT = 1.0, 1.0
_RECOMPUTED = {'none': 0.0, 'selective': layer_profile.MOST_SELECTIVE, 'stage': 1.0}


def plain_steps(num_micro_batches):
    """Measure the layers without a pipeline.

    Yields:
        What `measure` does.
    """
    problem = models.problem()
    pipe = models.build_pipe(problem)
    yield from measure(models.plain_step(problem, pipe, num_micro_batches), problem, pipe)


def pipeline_steps(schedule, recompute, jit_compile):
    """Measure the pipeline.

    Yields:
        What `measure` does.
    """
    device_kinds.use_virtual_devices(_NUM_PARTITIONS.value)
    problem = models.problem()
    pipe = models.build_pipe(
        problem, num_partitions=_NUM_PARTITIONS.value, schedule=schedule, recompute=recompute, jit_compile=jit_compile)
    yield from measure(models.pipeline_step(problem, pipe), problem, pipe)


def measure(step, problem, pipe):
    """Measure a step.

    Args:
        step: function of a batch that gives the loss.
        problem: `models.Problem`.
        pipe: built `GPipeLayer`.

    Yields:
        A dictionary of what need be measured only once, then the seconds of one step after the other.
    """
    loss = float(step(problem.x, problem.y_true))
    peak = common.peak_mib(lambda: step(problem.x, problem.y_true).numpy())
    yield {'loss': loss, 'peak': peak, 'ideal': ideal_ratio(
        [part.flops for part in pipe.partitions], pipe.schedule, pipe.params.recompute)}
    yield from models.step_seconds(step, problem)


def ideal_ratio(flops, schedule, recompute):
    """Return the step time that the schedule allows, over the time of the plain layers on one core.

    Args:
        flops: list of the floating-point operations of each partition.
        schedule: `Schedule`.
        recompute: 'none', 'selective' or 'stage'.
    """
    costs = [schedules.StageCosts(
        forward=cost, backward=_BACKWARD * cost, weight_gradient=_WEIGHT * cost,
        recompute=_RECOMPUTED[recompute] * cost) for cost in flops]
    one_core = sum(flops) * (1.0 + _BACKWARD + _WEIGHT) * schedule.num_micro_batches
    return schedule.simulate(costs).seconds / one_core


def _configurations():
    """Return, for each row of the table: title, whether it is a pipeline, generator function, arguments, cores."""
    num_partitions, num_micro_batches = _NUM_PARTITIONS.value, models.problem().num_micro_batches
    return [
        ('plain layers, whole batch', False, plain_steps, [1], 1),
        (f'plain layers, {num_micro_batches} micro-batches', False, plain_steps, [num_micro_batches], 1),
        *[(f"{num_partitions} partitions, {schedule}, recompute='{recompute}'" + (
            ', XLA' if jit_compile == 'true' else ''),
           True, pipeline_steps, [schedule, recompute, jit_compile == 'true'], num_partitions)
          for schedule in SCHEDULES.value for recompute in _RECOMPUTE.value for jit_compile in _JIT_COMPILE.value]]


def _run(configurations):
    with contextlib.ExitStack() as stack:
        processes = [stack.enter_context(common.Process(function, *arguments, num_cores=num_cores))
                     for *_, function, arguments, num_cores in configurations]
        once = [process.next() for process in processes]
        return once, common.medians_in_turns(processes, NUM_STEPS.value)


def _row(configuration, once, seconds, plain_seconds):
    title, is_pipeline, *_, num_cores = configuration
    ideals = [f'{once["ideal"]:.3f}', f'{seconds / plain_seconds / once["ideal"]:.2f}'] if is_pipeline else ['', '']
    return [title, num_cores, f'{seconds:.4f}', f'{seconds / plain_seconds:.3f}', *ideals,
            common.mib_text(once['peak'], 1), f'{once["loss"]:.6f}']


def main(unused_argv):
    configurations = _configurations()
    once, seconds = _run(configurations)
    plain_seconds = min(seconds[:2])
    header = ['configuration', 'cores', 'seconds', 'of plain', 'ideal', 'measured/ideal', 'peak MiB', 'loss']
    rows = [_row(*columns, plain_seconds) for columns in zip(configurations, once, seconds)]
    common.report(
        common.Table(header, rows),
        "Seconds: median of a step. 'of plain': over the faster of the two plain rows. 'ideal': what the schedule "
        "allows. 'peak': TensorFlow's allocator, weights included, all devices together; empty where it does not "
        'count, which TF_ENABLE_ONEDNN_OPTS=1 changes, and with it the seconds.')


if __name__ == '__main__':
    app.run(main)
