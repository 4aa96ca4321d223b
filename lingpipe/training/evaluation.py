"""Evaluation of a task, during training or from checkpoints."""

import contextlib
import os
import re
from collections.abc import Callable, Generator, Iterable
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from lingpipe import hyperparams
from lingpipe.cluster import waits
from lingpipe.devices import device_kinds, variable_placement
from lingpipe.input import base_input
from lingpipe.models import base_task
from lingpipe.stages import losses
from lingpipe.training import checkpoint_contents, checkpoints, errors, experiment, progress, watchdog
from lingpipe.training import logdir as logdirs
from lingpipe.training.experiment import Placement


class Evaluator:
    """Evaluation of a task by the task's own pipeline."""

    def __init__(self, task: base_task.BaseTask, read: Callable = variable_placement.read_variable,
                 placement: Placement | None = None) -> None:
        self._task = task
        self._read = read
        self._placement = placement or Placement()
        # Generated texts change their length, which static shapes do not allow.
        self._can_decode = not device_kinds.has_static_shapes_only(task.body.stages[0].device)
        self._function = tf.function(self._batch, autograph=False)

    def require_fit(self, name: str, data: base_input.BaseInput, training_input: base_input.BaseInput) -> None:
        """Check that an evaluation input fits the model. `name` is 'Dev' or 'Test'.

        Raises:
            ValueError: the examples do not fit the model, or the two inputs give a class different numbers.
        """
        self._task.check_input(data)
        _require_same_classes(name, data, training_input)
        if _of_one_example(data.batch_spec) == _of_one_example(training_input.batch_spec):
            return
        try:
            self._function.get_concrete_function(data.batch_spec, False)
        except (ValueError, TypeError, tf.errors.OpError) as error:
            raise ValueError(f'{name}() gives examples that do not fit the model ({errors.cause(error)}). Give it the '
                             'fields of Train().') from error

    def run(self, batches: Iterable, interrupted: Any = False, decode: bool = False,
            on_batch: Callable = lambda: None) -> dict[str, Any] | None:
        """Return {name: value} of the metrics over all examples. Return None if `interrupted` becomes true.

        Args:
            batches: finite iterable of batches `(inputs, *targets)` with equal shapes, such as a `tf.data.Dataset`.
            decode: whether to add the task's `decoding_metrics`, if the devices can compute them.

        Raises:
            TrainingError: there are no examples, or all have weight 0.
        """
        totals: Any = None
        for batch in batches:
            if interrupted:
                return None
            sums = tf.nest.map_structure(
                lambda tensor: np.asarray(tensor, np.float64),  # float32 cannot hold large counts exactly
                self._function(batch, decode and self._can_decode))
            totals = sums if totals is None else tf.nest.map_structure(np.add, totals, sums)
            on_batch()
        if totals is None or not totals['loss'][-1]:
            raise errors.TrainingError(
                'There is nothing to evaluate on: the input of the evaluation has no examples, or all have weight 0, '
                'as images without a label have (TFDS gives them the label -1). Choose another split.')
        with tf.device('CPU:0'):
            means = losses.means(totals, losses.results_of(self._task.loss_and_metrics))
        return {name: float(value) for name, value in means.items()}

    def _batch(self, batch: tuple, decode: bool) -> dict[str, Any]:
        def metrics(batch: tuple) -> dict[str, tuple]:
            images, *targets = batch
            return self._task.body.evaluate(self._task.loss_and_metrics, images, tuple(targets), read=self._read)

        images, *targets = batch
        found = self._placement.evaluate(metrics, batch)
        return {**found, **(self._task.decoding_metrics(images, tuple(targets), self._read) if decode else {})}


def _require_same_classes(name: str, data: base_input.BaseInput, training_input: base_input.BaseInput) -> None:
    """Raise ValueError if the two inputs give a class different numbers."""
    numbers, trained = ({each: number for number, each in enumerate(_class_names(part))}
                        for part in (data, training_input))
    for each in numbers.keys() & trained.keys():
        if numbers[each] != trained[each]:
            raise ValueError(
                f'{name}() gives class {each!r} the number {numbers[each]}, Train() the number {trained[each]}. Give '
                f'both the same classes, such as {name.lower()}.label_offset or {name.lower()}.class_names.')


def _class_names(data: base_input.BaseInput) -> list[str]:
    with contextlib.suppress(ValueError):  # nothing names them
        return data.ClassNames(data.params) or []
    return []


def _of_one_example(batch: tuple) -> tuple:
    return tf.nest.map_structure(lambda spec: (tuple(spec.shape[1:]), spec.dtype), batch)


def batches_of(data: base_input.BaseInput, train_params: hyperparams.Params,
               wait: Callable[..., waits.Wait] = watchdog.for_batch) -> Generator[Any, None, None]:
    """Yield the batches of an evaluation, and limit the wait for each batch.

    Args:
        wait: function with the arguments and the result of `watchdog.for_batch`.
    """
    count, is_awaited = 0, True
    with wait(data.source, train_params.input_timeout_seconds, lambda: count if is_awaited else None):
        for batch in data.evaluation_dataset():  # the first wait includes opening the input
            is_awaited = False
            yield batch
            count, is_awaited = count + 1, True


def require_examples(name: str, data: base_input.BaseInput, train_params: hyperparams.Params) -> None:
    """Raise ValueError if an evaluation input has no examples."""
    with contextlib.closing(batches_of(data, train_params)) as batches:  # a Ctrl-C in a finalizer would be ignored
        if next(batches, None) is None:
            raise ValueError(f'{name}() has no examples, so there is nothing to evaluate on. Choose another split, or '
                             'other files.')


class TrainedTask:
    """The task of a training run, with weights from a checkpoint of the run."""

    def __init__(self, params: hyperparams.Params, logdir: str, devices: list[str] | None,
                 input_spec: Any = None) -> None:
        self._params, self._logdir = params, logdirs.LogDir(logdir)
        self._logdir.require_run(params.ToText())
        self._input_spec = input_spec or experiment.input_spec(params)
        self._task = experiment.build_task(experiment.evaluation_params(params), self._input_spec, devices)
        self._reader = checkpoint_contents.WeightReader(self._task.body, params.train.checkpoint_timeout_seconds)


class CheckpointEvaluation(TrainedTask):
    """Evaluation of the checkpoints of a run."""

    def __init__(self, params: hyperparams.Params, evaluation_inputs: dict, logdir: str,
                 devices: list[str] | None = None) -> None:
        self._inputs = {name: experiment.build_input(p) for name, p in evaluation_inputs.items()}
        if not self._inputs:
            raise errors.TrainingError(
                'This model defines neither Dev() nor Test(), so there is nothing to evaluate on. Add one of them.')
        super().__init__(params, logdir, devices, next(iter(self._inputs.values())).input_spec)
        for each in self._inputs.values():
            self._task.check_input(each)
        self._evaluator = Evaluator(self._task)
        self._curves = {}

    def once(self, path: str | None = None) -> dict:
        """Evaluate a checkpoint, by default the newest. Print and return {dataset: metrics}."""
        step = self._reader.restore_chosen(path, self._logdir.train)
        results = {name: self._evaluator.run(batches_of(data, self._params.train), decode=True) or {}
                   for name, data in self._inputs.items()}
        folder = os.path.dirname(os.path.expanduser(path)) if path else self._logdir.train
        if os.path.realpath(folder) in map(os.path.realpath, (self._logdir.train, self._logdir.best)):
            for name, metrics in results.items():
                self._write_curves(name, step, metrics)
        for name, metrics in results.items():  # last, because the output may be a closed pipe
            print(f'step {step}, {name}: {progress.metrics_text(metrics)}', flush=True)
        return results

    def _write_curves(self, name: str, step: int, metrics: dict[str, float]) -> None:
        """Add a point to each curve of a dataset."""
        if name not in self._curves:
            self._curves[name] = progress.SummaryWriter(self._logdir.evaluation(name))
        self._curves[name].scalars(step, metrics)
        self._curves[name].flush()

    def follow(self, timeout_seconds: float | None = None) -> None:
        """Evaluate new checkpoints until the last step of the run, or until none comes for `timeout_seconds`."""
        for path in tf.train.checkpoints_iterator(self._logdir.train, timeout=timeout_seconds):
            try:
                self.once(path)
            except errors.DamagedCheckpointError as error:
                logging.warning('%s', error)
                continue
            except errors.TrainingError:
                if checkpoints.is_complete(path):
                    raise
                continue  # training has deleted it for a newer one
            text = self._logdir.read('control', 'params.txt') or ''  # the run may have other overrides
            last = re.search(r'^train\.max_steps : (\d+)$', text, re.MULTILINE)
            if checkpoints.step_of(path) >= (int(last[1]) if last else self._params.train.max_steps):
                return
