"""Seconds from the start of a process to the end of the first training step: the command, `PipelineModel`, plain Keras.

    python -m benchmarks.speed.first_step --runs=3
    python -m benchmarks.speed.first_step --model=params.transformer_lm

All three train the layers of the model with its optimizer on a batch of its size. They take turns, and medians are
reported. Each process imports what it needs, so imports are inside the functions.
"""

import statistics
import subprocess
import sys
import tempfile
import time

import keras
import numpy as np
from absl import app, flags

from benchmarks.support import common
from lingpipe import model_registry

_MODEL = flags.DEFINE_string('model', 'params.amoebanet', "A value of the command's --model whose loss is of labels.")
_RUNS = flags.DEFINE_integer('runs', 3, 'Processes of each kind; the medians count.', lower_bound=1)
_SIGN = 'First step after'  # what the command writes


def plain(shapes):
    """Yield the loss of the first step of plain Keras."""
    params, x, y = _problem(shapes)
    model = keras.Sequential([each.Instantiate() for each in params.task.body.layers])
    yield _loss_of_first_step(model, params, x, y)


def pipelined(shapes):
    """Yield the loss of the first step of a `PipelineModel` of as many partitions as the params say."""
    params, x, y = _problem(shapes)
    from lingpipe.models import pipeline_model
    pipe = params.task.body.Copy().Set(name='pipe').Instantiate()
    yield _loss_of_first_step(pipeline_model.PipelineModel(pipe), params, x, y)


def _loss_of_first_step(model, params, x, y):
    from lingpipe.optimizers import training_optimizer
    model.compile(training_optimizer.make_optimizer(params.train),
                  keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return float(model.train_on_batch(x, y))


def _problem(shapes):
    """Return the params of the model, and inputs and labels of the shapes and types that `_shapes` gave."""
    (x_shape, x_dtype), (y_shape, y_dtype) = shapes
    return model_registry.GetParams(_MODEL.value, 'Train'), np.ones(x_shape, x_dtype), np.zeros(y_shape, y_dtype)


def _shapes():
    from lingpipe.training import experiment
    data = experiment.build_input(model_registry.GetParams(_MODEL.value, 'Train').input)
    return [(spec.shape.as_list(), spec.dtype.name) for spec in data.batch_spec[:2]]


def seconds_of(function, shapes):
    """Return the seconds from the start of a process to the first value that a function yields in it."""
    started = time.monotonic()
    common.measured(function, shapes)
    return time.monotonic() - started


def seconds_of_command():
    """Return the seconds from the start of the command to the line that its first step has ended."""
    with tempfile.TemporaryDirectory() as logdir:
        command = [sys.executable, str(common.ROOT / 'run.py'), f'--model={_MODEL.value}', '--mode=train',
                   f'--logdir={logdir}']
        started = time.monotonic()
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
            lines = []
            for line in process.stderr:
                lines.append(line)
                if _SIGN in line:
                    seconds = time.monotonic() - started
                    process.kill()
                    return seconds
    raise RuntimeError(f'{" ".join(command)} ended without a step:\n{"".join(lines[-10:])}')


def main(unused_argv):
    shapes = _shapes()
    kinds = {'plain Keras, train_on_batch': lambda: seconds_of(plain, shapes),
             'PipelineModel, train_on_batch': lambda: seconds_of(pipelined, shapes),
             'the command': seconds_of_command}
    turns = [[measure() for measure in kinds.values()] for _ in range(_RUNS.value)]
    medians = [statistics.median(seconds) for seconds in zip(*turns)]
    common.report(common.Table(['what', 'seconds', 'of plain Keras'], [
        [name, f'{seconds:.1f}', f'{seconds / medians[0]:.2f}'] for name, seconds in zip(kinds, medians)]))


if __name__ == '__main__':
    app.run(main)
