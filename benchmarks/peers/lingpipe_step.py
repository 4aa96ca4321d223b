"""LingPipe's side of the comparison: its steps, and the model, weights and batch that its peers start from."""

import itertools
import json
import pathlib

import numpy as np
from absl import flags

from benchmarks.speed import step_time
from benchmarks.support import models
from lingpipe.devices import device_kinds

FLAGS = flags.FLAGS
FLAGS.set_default('model', 'decoder')
FLAGS.set_default('schedules', 'gpipe,1f1b,zb_h1')
FLAGS.set_default('num_steps', 5)


def plain_steps(num_micro_batches):
    """Yield what `step_time.plain_steps` does, with this module's defaults of flags."""
    yield from step_time.plain_steps(num_micro_batches)


def pipeline_steps(schedule, recompute):
    """Yield the same for `step_time.pipeline_steps`, not compiled by XLA, as PyTorch's rows are not compiled."""
    yield from step_time.pipeline_steps(schedule, recompute, jit_compile=False)


def write_problem(folder):
    """Write the initial weights and the batch for programs without TensorFlow.

    * `weights`: float32, one variable after the other in the model's order.
    * `tokens`: int32 `[2, batch_size, sequence_length]`, inputs and targets.
    * `problem.json`: what this function yields.

    Args:
        folder: existing folder.

    Yields:
        Dictionary of the model's sizes, and of the ends of its partitions by their number (a text, as JSON has it).
    """
    num_partitions = FLAGS.num_partitions
    device_kinds.use_virtual_devices(2 * num_partitions)
    problem = models.problem()
    pipes = [models.build_pipe(problem, num_partitions=count) for count in (num_partitions, 2 * num_partitions)]
    weights = np.concatenate([np.ravel(weight) for weight in pipes[0].trainable_variables])
    weights.astype(np.float32).tofile(f'{folder}/weights')
    np.stack([problem.x, problem.y_true]).astype(np.int32).tofile(f'{folder}/tokens')
    loss = models.plain_step(problem, pipes[0], problem.num_micro_batches)(problem.x, problem.y_true)
    description = {**models.decoder_sizes(), 'num_micro_batches': problem.num_micro_batches,
                   'num_parameters': weights.size, 'loss': float(loss),
                   'ends': {len(pipe.partitions): _ends(pipe) for pipe in pipes}}
    pathlib.Path(folder, 'problem.json').write_text(json.dumps(description))
    yield description


def _ends(pipe):
    return list(itertools.accumulate(len(partition.layer_names) for partition in pipe.partitions))
