"""What a training on the handwritten digits reaches, for benchmarks that compare trainings."""

import functools
import statistics

from lingpipe.training import evaluation, experiment, train_program

_CHANCE = 10.0


def accuracy(described):
    """Trains once.

    Args:
        described: `base_model_params.SingleTaskModelParams` with `Train()`, `Test()` and `Task()`.

    Returns:
        Per cent of the held-out digits that are read; chance where numbers stopped being finite.
    """
    params, train = described.Model(), described.Train().Instantiate()
    task = experiment.build_task(params, train.input_spec)
    program = train_program.TrainProgram(task, params.train)
    try:
        program.run(program.iterate(functools.partial(train.training_dataset, 0)), params.train.max_steps)
    except Exception as error:
        if train_program.NON_FINITE not in str(error):
            raise
        return _CHANCE
    return 100 * evaluation.Evaluator(task).run(described.Test().Instantiate().evaluation_dataset())['accuracy']


def mean_and_range(values):
    """Returns '98.52 (98.06 to 98.89)', or the only value."""
    mean = f'{statistics.fmean(values):.2f}'
    return mean if len(values) == 1 else f'{mean} ({min(values):.2f} to {max(values):.2f})'
