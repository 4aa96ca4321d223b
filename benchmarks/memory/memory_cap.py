"""The largest Transformer that trains under a cap on the memory of each device, as Table 1 of GPipe (arXiv 1811.06965)
asks.

    python -m benchmarks.memory.memory_cap --model=decoder --width=512 --batch_size=16 --num_micro_batches=16

The decoder of `support/decoder.py` gets more blocks, in float32 with Adam, until it dies within two steps. A device is
a process with a limit to its data: what it has at start-up, what its program takes, and the cap. What a program takes,
graphs above all, is found with layers that are 8 wide. A partition runs in a process of its own and does the actions of
its device and no others (`isolated_partition.py`); a model trains if each of its partitions does. Plain Keras is a
`Sequential` that gets the whole batch.
"""

import bisect
import concurrent.futures
import os
import sys
from typing import NamedTuple

import keras
import tensorflow as tf
from absl import app, flags

from benchmarks.memory import isolated_partition
from benchmarks.support import common, models
from lingpipe import schedules
from lingpipe.devices import device_kinds
from lingpipe.pipeline import layer_sources
from lingpipe.planner import accelerators, picture, plans, resolution

_CAP_MIB = flags.DEFINE_integer('cap_mib', 512, 'Memory of a device.', lower_bound=1)
_PARTITIONS = flags.DEFINE_list('partitions', ['1', '2', '4'], 'Values of num_partitions.')
_RECOMPUTE = flags.DEFINE_list('recompute', ['stage', 'layer'], 'Values of recompute.')
_NUM_STEPS, _NUM_SLOTS, _NARROW, _MIB = 2, 2, 8, 2**20
# Partitions, blocks and millions of parameters of GPipe's Transformers; 0: plain layers.
_PUBLISHED = [(0, 3, 282.2), (1, 13, 785.8), (8, 103, 5300.0), (32, 415, 21000.0), (128, 1663, 83900.0)]


class Configuration(NamedTuple):
    """How a model is trained.

    Attributes:
        num_partitions: K; 0: plain Keras, without LingPipe.
        recompute: 'stage' or 'layer'; 'none' for plain Keras.
    """

    num_partitions: int
    recompute: str


def plain(num_blocks, limit):
    """Trains the plain layers and yields what `_train` returns; `limit` in MiB beyond start-up, None for no limit."""
    problem = _problem(num_blocks, limit)
    base = common.data_mib() if limit is None else common.cap_memory(limit)
    model = keras.Sequential([params.Instantiate() for params in problem.layers])
    model.build(problem.x.shape)
    model.compile(optimizer='adam', loss=problem.loss_fn, jit_compile=False)
    yield _train(lambda: model.train_on_batch(problem.x, problem.y_true), model.count_params(), base)


def partition(num_blocks, limit, num_partitions, recompute, index, ends):
    """Trains one partition of the pipeline; see `plain`."""
    count = _problem(num_blocks, limit).num_micro_batches
    base = common.data_mib() if limit is None else common.cap_memory(limit)
    problem, pipe = isolated_partition.alone('gpipe', num_partitions, count, recompute, index, ends)
    optimizer = keras.optimizers.Adam()
    optimizer.build(pipe.trainable_variables)

    @tf.function(autograph=False)
    def step(x, y_true):
        result = pipe.value_and_grad(problem.loss_fn, x, y_true)
        optimizer.apply(result.gradients, pipe.trainable_variables)
        return result.loss

    yield _train(lambda: step(problem.x, problem.y_true), pipe.count_params(), base)


def _problem(num_blocks, limit):
    """Returns the `models.Problem`, after TensorFlow has started; without a limit its layers are narrow."""
    device_kinds.use_virtual_devices(1)
    flags.FLAGS.num_blocks = num_blocks
    if limit is None:
        flags.FLAGS.width = _NARROW
    return models.problem()


def _train(step, num_parameters, base):
    losses = [float(step()) for _ in range(_NUM_STEPS)]
    return {'losses': losses, 'parameters': num_parameters, 'taken': common.data_mib() - base}


class Trials:
    """Trains models of ever other depth, equal partitions once.

    Args:
        recompute: 'stage' or 'layer'; 'none' for plain Keras.
        program: pair of MiB that a program takes by itself: without blocks, and for each block.
    """

    def __init__(self, recompute, program):
        self._recompute, self._program, self._known = recompute, program, {}

    def results(self, num_partitions, num_blocks):
        """Returns for each partition what its process gave, or the text of its death; K=0 is plain Keras.

        In GPipe's schedule every device does the same actions, so that partitions of equally many blocks are equal, but
        for the first, which makes no gradients of its input, and the last, which has the loss.
        """
        configuration = Configuration(num_partitions, self._recompute)
        ends = planned(num_blocks, configuration).ends if num_partitions else [num_blocks + 2]
        keys = [(index > 0, index + 1 < num_partitions, end - start)
                for index, (start, end) in enumerate(zip([0, *ends], ends))]
        jobs = {key: (configuration, num_blocks, ends, self._limit(*key), index)
                for index, key in enumerate(keys) if key not in self._known}
        with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            self._known.update(zip(jobs, pool.map(_outcome, jobs.values())))
        found = [self._known[key] for key in keys]
        print(*configuration, num_blocks, *zip(keys, found), file=sys.stderr, flush=True)
        return found

    def dies(self, num_partitions, num_blocks):
        """Returns the text of the first death of a partition, or None."""
        return next((found for found in self.results(num_partitions, num_blocks) if isinstance(found, str)), None)

    def _limit(self, is_after_others, is_before_others, num_layers):
        """The first partition holds the embedding, the last one the projection onto the vocabulary."""
        num_blocks = num_layers - (not is_after_others) - (not is_before_others)
        return round(_CAP_MIB.value + self._program[0] + self._program[1] * num_blocks)


def _outcome(job):
    try:
        return _run_process(*job)
    except common.ProcessDied as death:
        return str(death)


def _run_process(configuration, num_blocks, ends, limit, index):
    arguments = [partition, num_blocks, limit, *configuration, index, ends] if configuration.num_partitions else [
        plain, num_blocks, limit]
    with common.Process(*arguments) as process:
        return process.next()


def program_size(configuration, depths=(1, 6)):
    """Returns MiB that a program takes by itself: without blocks, and for each block; by two narrow models."""
    small, large = [_run_process(configuration, blocks, [blocks + 2], None, 0)['taken'] for blocks in depths]
    each = (large - small) / (depths[1] - depths[0])
    return small - depths[0] * each, each


def planned(num_blocks, configuration):
    """Returns the `Plan` of a model, with the cap as the memory of a device."""
    flags.FLAGS.num_blocks = num_blocks
    problem = models.problem()
    stack = resolution.LayerStack(
        layer_sources.LayersOfParams(problem.layers), models.input_specs(problem), [-(-problem.x.shape[0] // problem.num_micro_batches)])
    return plans.make_plan(plans.Setting(stack, accelerators.CPU, _CAP_MIB.value * _MIB, _NUM_SLOTS),
                          schedules.gpipe(configuration.num_partitions, problem.num_micro_batches),
                          configuration.recompute)


def largest(dies, guess):
    """Finds the last of the numbers 1, 2, ... for which something does not die, by doubling and bisection.

    Args:
        dies: function from a number to whether it dies; from the first that does, all do; it may be asked twice.
        guess: number to look around first.

    Returns:
        The number; 0 where 1 dies.
    """
    high = _first(dies, guess, 1)
    low = _first(lambda number: number == 0 or not dies(number), guess, -1)
    return bisect.bisect_left(range(high), True, lo=low + 1, key=dies) - 1


def _first(condition, number, distance):
    """Goes away from a number, by steps that double, until a condition holds; 0 at least."""
    while not condition(number):
        number, distance = max(0, number + distance), 2 * distance
    return number


def measure(trials, num_partitions, guess):
    """Returns the largest number of blocks, its parameters, and what the next larger model dies of.

    Raises:
        ValueError: one block is too much.
    """
    found = largest(lambda num_blocks: bool(trials.dies(num_partitions, num_blocks)), guess)
    if not found:
        raise ValueError(f'--cap_mib={_CAP_MIB.value} is too little for one block a device. Raise it.')
    parameters = sum(result['parameters'] for result in trials.results(num_partitions, found))
    return found, parameters, trials.dies(num_partitions, found + 1)


def _planned_depth(configuration):
    small = planned(max(2, configuration.num_partitions), configuration)
    return picture.largest_depth(small, configuration.num_partitions).largest


def _pipeline_rows(recompute, plain_parameters):
    program, rows, blocks_of_one = program_size(Configuration(1, recompute)), [], None
    trials = Trials(recompute, program)
    for num_partitions in map(int, _PARTITIONS.value):
        expected = _planned_depth(Configuration(num_partitions, recompute))
        found = measure(trials, num_partitions, round(num_partitions * blocks_of_one) if rows else expected)
        rows.append(_row(f'LingPipe, K={num_partitions}', recompute, expected, program, plain_parameters, *found))
        blocks_of_one = found[0] / num_partitions
    return rows


def _row(name, recompute, expected, program, plain_parameters, blocks, parameters, cause):
    return [name, recompute, blocks, expected, f'{parameters / 1e6:.1f}', f'{parameters / plain_parameters:.1f}',
            f'{program[0]:.0f} + {program[1]:.0f} a block', cause[:60]]


def main(unused_argv):
    # As on a device, what is freed is free: the C library keeps no heap for each thread, and none of larger blocks.
    os.environ.update(MALLOC_ARENA_MAX='1', MALLOC_MMAP_THRESHOLD_=str(2**18))
    program = program_size(Configuration(0, 'none'))
    found = measure(Trials('none', program), 0, 2)
    rows = [_row('plain Keras', 'none', '', program, found[1], *found)]
    for recompute in _RECOMPUTE.value:
        rows += _pipeline_rows(recompute, found[1])
    published = [[f'K={count}' if count else 'plain', blocks, f'{millions:,.1f}', f'{millions / _PUBLISHED[0][2]:.1f}']
                 for count, blocks, millions in _PUBLISHED]
    problem = models.problem()
    common.report(
        common.markdown_table([
            'configuration', 'recompute', 'L', 'L planned', 'M parameters', 'ratio', 'MiB program', 'L + 1 dies of'],
                              rows),
        f'{_CAP_MIB.value} MiB a device beyond start-up and program; decoder, tokens {tuple(problem.x.shape)}, '
        f'{problem.num_micro_batches} micro-batches, Adam.',
        'As published (Table 1, 16 GiB a device):',
        common.markdown_table(['configuration', 'L', 'M parameters', 'ratio'], published))


if __name__ == '__main__':
    app.run(main)
