"""Allocator peak over the number of micro-batches, at a fixed micro-batch size: GPipe's grows, 1F1B's does not.

    python -m benchmarks.memory.memory_curves --model=decoder --num_partitions=2
"""

from absl import app, flags

from benchmarks.support import common, models
from lingpipe.devices import device_kinds

_NUM_PARTITIONS = flags.DEFINE_integer('num_partitions', 2, 'Partitions K.')
_MICRO_BATCH_SIZE = flags.DEFINE_integer('micro_batch_size', 4, 'Examples in a micro-batch.')
_COUNTS = flags.DEFINE_list('counts', ['2', '4', '8', '16', '32'], 'Values of num_micro_batches.')
_SCHEDULES = flags.DEFINE_list('schedules', ['gpipe', '1f1b', 'zb_h1'], 'Values of schedule.')
_RECOMPUTE = flags.DEFINE_list('recompute', ['none', 'stage', 'layer'], 'Values of recompute.')


def peak(schedule, recompute, num_micro_batches):
    """Measure one step.

    Yields:
        MiB of TensorFlow's allocator, weights included; None where it does not count.
    """
    device_kinds.use_virtual_devices(_NUM_PARTITIONS.value)
    flags.FLAGS.batch_size = num_micro_batches * _MICRO_BATCH_SIZE.value
    problem = models.problem()
    pipe = models.build_pipe(problem, num_partitions=_NUM_PARTITIONS.value, num_micro_batches=num_micro_batches,
                             schedule=schedule, recompute=recompute)
    step = models.pipeline_step(problem, pipe)
    step(problem.x, problem.y_true).numpy()
    yield common.peak_mib(lambda: step(problem.x, problem.y_true).numpy())


def main(unused_argv):
    counts = list(map(int, _COUNTS.value))
    pairs = [(schedule, recompute) for schedule in _SCHEDULES.value for recompute in _RECOMPUTE.value
             if (schedule, recompute) != ('zb_h1', 'layer')]
    rows = [[schedule, recompute, *(common.mib_text(common.measured(
        peak, schedule, recompute, count, environment=common.COUNTING_MEMORY)) for count in counts)]
            for schedule, recompute in pairs]
    common.report(
        common.Table(['schedule', 'recompute', *(f'M={count}' for count in counts)], rows),
        f"MiB at TensorFlow's allocator's peak, weights included; K={_NUM_PARTITIONS.value}, {_MICRO_BATCH_SIZE.value} "
        f'examples per micro-batch, model {models.name()}. {common.MEMORY_NOTE}')


if __name__ == '__main__':
    app.run(main)
