"""A training run before its first step. All parts are built, checked and restored."""

import functools
import time
from typing import Any

from lingpipe import hyperparams
from lingpipe.cluster import waits
from lingpipe.partition import balancing
from lingpipe.training import (
    checkpointing,
    checkpoints,
    errors,
    evaluation,
    experiment,
    initial_weights,
    inspection,
    planning,
    trackers,
    watchdog,
)
from lingpipe.training import logdir as logdirs
from lingpipe.training.experiment import Placement


class PreparedRun:
    """The parts of a training run, such as task, inputs, program and checkpoints.

    Args:
        params: the experiment's Params with `task`, `train`, `eval` and `input`.
        evaluation_inputs: dictionary from 'Dev' or 'Test' to the Params of an input.
        placement: the `Placement` to train on; None: the devices of this process.
        started: `time.monotonic()` at the start of the program, for the time to the first step.
        dog: `watchdog.Watchdog`, which limits steps, or None.

    Raises:
        ValueError: a field of `train` or `eval` is invalid.
        TrainingError: the log directory or a checkpoint cannot be used.
    """

    def __init__(self, params: hyperparams.Params, evaluation_inputs: dict, logdir: Any,
                 placement: Placement | None = None, started: Any = None,
                 dog: watchdog.Watchdog | None = None) -> None:
        experiment.validate_training_params(params.train, params.eval)
        self._params = params = planning.resolved(params)
        self._started: float | None = started or time.monotonic()  # None after the first step
        self._dog = dog or watchdog.Watchdog()
        self._logdir = logdirs.LogDir(logdir)
        self._trackers = trackers.Trackers(params.train.trackers, self._logdir)
        self._logdir.create()
        if params.eval.best_metric is not None:
            self._logdir.create_folder('best')
        with self._logdir.lock():
            pass  # refuses a second training run before everything is built
        self._input = experiment.build_input(params.input, params.train.random_seed)
        self._evaluation_inputs = {name: experiment.build_input(p) for name, p in evaluation_inputs.items()}
        self._best = checkpoints.BestCheckpoint(self._logdir.best, params.eval.best_metric)
        placement = placement or Placement()
        with placement.creating():
            self._task = experiment.build_task(params, self._input.input_spec, placement.devices, self._logdir.path)
        self._task.check_input(self._input)
        if not checkpoints.complete(self._logdir.train):  # before an optimizer or an average copies the weights
            initial_weights.load(params.train, self._task.body)
        self._program = placement.program(self._task, params.train, self._input.batch_spec)
        self._evaluator = evaluation.Evaluator(self._task, self._program.read, placement)
        self._writer = checkpointing.BackgroundWriter()
        self._checkpointer = self._make_checkpointer(self._logdir.train, params.train.save_max_to_keep)
        self._best_checkpointer = self._make_checkpointer(self._logdir.best, max_to_keep=1)
        self._step = 0
        self._iterator: Any = None

    def _waiting_for(self, what: str) -> waits.Wait:
        """Return a context manager that limits how long a `with` block waits for other processes."""
        return waits.for_files(what, self._params.train.checkpoint_timeout_seconds, self._dog.silence_in_words)

    def _make_checkpointer(self, directory: str, max_to_keep: int) -> checkpointing.Checkpointer:
        wait = functools.partial(
            waits.for_checkpoint, seconds=self._params.train.checkpoint_timeout_seconds,
            details=self._dog.silence_in_words)
        return checkpointing.Checkpointer(directory, self._program, max_to_keep, self._writer, wait)

    def check(self) -> None:
        """Prepare the first step, but do not run it. Raise TrainingError if the training input has no batch."""
        with self._logdir.lock():
            self._begin()
            self._trackers.end(trackers.FINISHED)
            if next(self._iterator, None) is None:
                raise errors.TrainingError(f'The input of training, {self._input.source}, has no batch. Let its '
                                           'training_dataset give some.')

    def _begin(self) -> None:
        """Restore the newest state, and begin the run."""
        newest = self._checkpointer.restore_newest()
        with self._waiting_for('weights to reach all devices'):  # other processes may read the checkpoint too
            self._program.state_restored()
        self._step = int(self._program.global_step)
        self._iterator = self._program.open_input(self._input, self._step)
        targets = self._input.TargetSpec(self._input.params)
        is_larger_better = experiment.is_larger_better(
            self._params.eval, self._task, self._task.metric_names(targets))
        for name, data in self._evaluation_inputs.items():
            self._evaluator.require_fit(name, data, self._input)
            evaluation.require_examples(name, data, self._params.train)
        self._best.read(is_larger_better, resumes=bool(newest))
        self._logdir.write_control(  # everything is checked before anything is written
            self._params.ToText(), inspection.describe(self._task.body.analyses, self._program.partitions))
        self._trackers.start(self._params, self._evaluation_inputs)
        analysis = balancing.table(self._program.partitions)
        self._trackers.text('partitions', analysis, 0)
        print(analysis)
        body = self._params.task.body
        replicas = f'{body.num_replicas} replicas of ' if body.num_replicas > 1 else ''
        max_steps = self._params.train.max_steps
        print(f'{balancing.parameters_in_words(self._program.partitions)}, {replicas}{body.num_micro_batches} '
              'micro-batches, '
              + (f'resuming from step {self._step} of {max_steps}' if newest else f'starting, {max_steps} steps')
              + f', log directory {self._logdir.path}', flush=True)
        if self._step >= max_steps > 0:
            print(f'Nothing is left to train: step {self._step} has reached train.max_steps={max_steps}. To continue, '
                  'raise train.max_steps.', flush=True)
