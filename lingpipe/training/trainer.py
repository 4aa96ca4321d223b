"""Training of an experiment, from the beginning or its newest checkpoint, up to its last step."""

import contextlib
import functools
import time
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from absl import logging

from lingpipe import hyperparams
from lingpipe.cluster import waits
from lingpipe.devices import device_kinds
from lingpipe.input import base_input
from lingpipe.models import base_task
from lingpipe.partition import partition_summary
from lingpipe.training import (
    batch_waits,
    best_checkpoint,
    checkpointing,
    checkpoints,
    errors,
    evaluation,
    experiment,
    initial_weights,
    inspection,
    interruption,
    planning,
    progress,
    trackers,
    train_program,
    watchdog,
)
from lingpipe.training import logdir as logdirs
from lingpipe.training.placement import Placement

_SECONDS_OF_A_SAMPLE = 3600
# What an input raises; other errors may come from other machines.
_OF_INPUTS = (tf.errors.InvalidArgumentError, tf.errors.UnknownError, tf.errors.DataLossError, tf.errors.NotFoundError,
              tf.errors.PermissionDeniedError, tf.errors.UnimplementedError)


class Trainer:
    """Runs training steps, evaluates, writes checkpoints and curves, and stops and resumes exactly.

    Args:
        params: the experiment's Params with `task`, `train`, `eval` and `input`.
        evaluation_inputs: dictionary from 'Dev' and 'Test' to the Params of these inputs.
        placement: the `Placement` to train on; None: the devices of this process.
        started: `time.monotonic()` at the start of the program, for the time to the first step.
        dog: `watchdog.Watchdog`, which limits steps, or None.

    Raises:
        ValueError: a field of `train` or `eval` cannot work.
        TrainingError: the log directory cannot be written to, is corrupt, or is in use by another training run; or
            `train.init_from_checkpoint` cannot be read.
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
        with self._waiting_for(f'log directory {logdir}'):
            self._logdir.create()
            if params.eval.best_metric is not None:
                self._logdir.create_folder('best')
            with self._logdir.lock():
                pass  # refuses a second training run before everything is built
        self._input = experiment.build_input(params.input, params.train.random_seed)
        self._evaluation_inputs = {name: experiment.build_input(p) for name, p in evaluation_inputs.items()}
        self._best = self._make_best()
        placement = placement or Placement()
        self._task = self._built_task(placement)
        self._program = placement.program(self._task, params.train, self._input.batch_spec)
        self._evaluator = evaluation.Evaluator(self._task, self._program.read, placement)
        self._writer = checkpointing.BackgroundWriter()
        with self._waiting_for(f'list of checkpoints in {logdir}'):
            self._checkpointer = self._make_checkpointer(self._logdir.train, params.train.save_max_to_keep)
            self._best_checkpointer = self._make_checkpointer(self._logdir.best, max_to_keep=1)
        self._time = progress.TimeSpent()
        self.interrupted = interruption.Interruption()
        self._step, self._is_complete = 0, False
        self._iterator: Any = None
        self._num_told_bad_records = 0
        self._batch_size = self._input.params.batch_size

    def _waiting_for(self, what: str) -> waits.Wait:
        """Return the scope of a wait for files of the log directory, or for other processes at the same point."""
        return waits.for_files(what, self._params.train.checkpoint_timeout_seconds, self._dog.silence_in_words)

    def _make_checkpointer(self, directory: str, max_to_keep: int) -> checkpointing.Checkpointer:
        wait = functools.partial(
            waits.for_checkpoint, seconds=self._params.train.checkpoint_timeout_seconds,
            details=self._dog.silence_in_words)
        return checkpointing.Checkpointer(directory, self._program, max_to_keep, self._writer, wait)

    def _make_best(self) -> best_checkpoint.BestCheckpoint:
        inputs = [self._evaluation_inputs[name] for name in ('Dev', 'Test') if name in self._evaluation_inputs]
        return best_checkpoint.BestCheckpoint(
            self._logdir.best, self._params.eval.best_metric, inputs[0].params.ToText() if inputs else '')

    def _built_task(self, placement: Placement) -> base_task.BaseTask:
        """Build the task; a new run loads initial weights before an optimizer or an average copies them."""
        with placement.creating():
            task = experiment.build_task(self._params, self._input.input_spec, placement.devices, self._logdir.path)
        task.check_input(self._input)
        if not checkpoints.complete(self._logdir.train):
            initial_weights.load(self._params.train, task.body)
        return task

    def run(self) -> dict:
        """Train up to `train.max_steps`, or until a signal asks to stop.

        Returns:
            Dictionary from dataset name to the final metrics; empty if a signal stopped the training.

        Raises:
            ValueError: `eval.best_metric` or the examples of an evaluation do not fit the task.
            TrainingError: a loss is not finite, or the log directory fails.
            WorkerIsBackError: at a checkpoint, a worker that was left out answers again.
        """
        with self._logdir.lock():
            status = trackers.FAILED
            try:
                results = self._run()
                is_stopped = self.interrupted or self._step < self._params.train.max_steps
                status = trackers.KILLED if is_stopped else trackers.FINISHED
                return results
            finally:
                self._trackers.end(status)
                told = progress.bad_records_text({'Train': self._input, **self._evaluation_inputs})
                if told:
                    print(told, flush=True)

    def check(self) -> None:
        """Do all that comes before the first step: the model is built, and every input gives a batch.

        Raises:
            ValueError, TrainingError: as `run`.
        """
        with self._logdir.lock():
            self._begin()
            self._trackers.end(trackers.FINISHED)
            if next(self._iterator, None) is None:
                raise errors.TrainingError(f'The input of training, {self._input.source}, has no batch. Let its '
                                           'training_dataset give some.')

    def run_to_exit_code(self) -> int:
        """Do what `run` does; return 0 if it came to the last step and its evaluation, else EXIT_TRY_AGAIN."""
        self.run()
        return 0 if self._is_complete else errors.EXIT_TRY_AGAIN

    def _run(self) -> dict[str, dict[str, float]]:
        p = self._params.train
        self._begin()
        self._program.stopping.assign(False)
        with interruption.catch_signals(lambda: self._program.stopping.assign(True)) as self.interrupted, \
                self._writing_to_the_end():
            self._dog.listen(self.interrupted.ask)
            self._progress = progress.Progress(p.max_steps, self._step, self._batch_size, self._input.example_name)
            try:
                with self._program.watching_input(self._input, self._wait_for_batch(self._program.batch_waits.current)):
                    self._train()
            finally:
                self._progress.close()
                self._iterator = None  # an input that Python makes must be closed before Python shuts down
            path = self._begin_save(self._checkpointer)
            with self._time.of(progress.SAVING):
                self._writer.wait()
            if self._program.should_stop(self.interrupted) and self._step < p.max_steps:
                print(self._stopped(self._step, path), flush=True)
                return {}
            return self._finish(path)

    def _train(self) -> None:
        self._saved_at = time.monotonic()
        if self._is_evaluation_missing():
            self._evaluate_between_steps()
        while self._step < self._params.train.max_steps and not self._program.should_stop(self.interrupted):
            self._train_steps(self._num_steps_to_next_event())
            with self._saving_before_errors():
                self._after_steps()

    @contextlib.contextmanager
    def _saving_before_errors(self) -> Iterator[None]:
        """Save the steps that are done before an error between two steps, such as in an evaluation, ends the run."""
        try:
            yield
        except Exception as error:
            if errors.exit_code(error) != errors.EXIT_TRY_AGAIN:
                with contextlib.suppress(errors.TrainingError, tf.errors.OpError):  # the first error ends the run
                    print(f'The steps up to {self._step} are saved: {self._save()}.', flush=True)
            raise

    def _save(self) -> str:
        path = self._begin_save(self._checkpointer)
        self._writer.wait()
        return path

    def _wait_for_batch(self, position: Callable[[], int | None]) -> Callable[..., waits.Wait]:
        """Return `batch_waits.for_batch`, which saves the run by `Checkpointer.save` before its process ends."""
        return functools.partial(
            batch_waits.for_batch, on_timeout=functools.partial(self._end_without_batch, position),
            is_urgent=lambda: bool(self.interrupted))

    def _end_without_batch(self, position: Callable[[], int | None], sentence: str) -> None:
        """Save the run and end its process: nothing cancels a step that waits. Do nothing if a batch has come."""
        self._dog.beat()
        try:
            self._program.before_save()
            path = self._checkpointer.save(position)
            if path is None:
                return
            self._curves.flush()
        except errors.TrainingError as error:
            waits.end_process(f'{sentence} {error}')
        self._trackers.end(trackers.KILLED if self.interrupted else trackers.FAILED)
        if self.interrupted:
            print(self._stopped(checkpoints.step_of(path), path), flush=True)
            self.interrupted.end_process()
        waits.end_process(f'{sentence} The steps before were saved: checkpoint {path}.')

    def _stopped(self, step: int, path: str) -> str:
        return (f'Stopped by {self.interrupted.reason or "another worker"} at step {step}; checkpoint {path}. Run the '
                'same command again to resume from there.')

    def _begin(self) -> None:
        """Restore the newest state, and refuse what cannot work, before anything is written."""
        newest = self._checkpointer.restore_newest()
        with self._waiting_for('weights to reach all devices'):  # other processes may read the checkpoint too
            self._program.state_restored()
        self._step = self._step_of_events = int(self._program.global_step)
        self._iterator = self._program.open_input(self._input, self._step)
        changes = logdirs.changes(self._logdir.read_params() or '', self._params.ToText()) if newest else []
        initial_weights.require_unchanged(self._params.train, changes, self._step)
        if changes:
            print(f'Changed since the last start: {"; ".join(changes)}', flush=True)
        targets = self._input.TargetSpec(self._input.params)
        is_larger_better = experiment.is_larger_better(
            self._params.eval, self._task, self._task.metric_names(targets))
        for name, data in self._evaluation_inputs.items():
            self._evaluator.require_fit(name, data, self._input)
            evaluation.require_examples(name, data, self._params.train)
        with self._waiting_for(f'first curves in {self._logdir.path}'):
            self._best.read(is_larger_better, resumes=bool(newest))
            if not newest and self._logdir.read_evaluated():
                self._logdir.write_evaluated(0)  # was of an earlier run
            self._begin_files()
        body = self._params.task.body
        replicas = f'{body.num_replicas} replicas of ' if body.num_replicas > 1 else ''
        max_steps = self._params.train.max_steps
        print(f'{partition_summary.parameters_in_words(self._program.partitions)}, {replicas}{body.num_micro_batches} '
              'micro-batches, '
              + (f'resuming from step {self._step} of {max_steps}' if newest else f'starting, {max_steps} steps')
              + f', log directory {self._logdir.path}', flush=True)
        if self._step >= max_steps > 0:
            print(f'Nothing is left to train: step {self._step} has reached train.max_steps={max_steps}. To continue, '
                  'raise train.max_steps.', flush=True)

    def _begin_files(self) -> None:
        """Write what describes the run, and open its curves."""
        self._logdir.write_control(
            self._params.ToText(), inspection.describe(self._task.body.analyses, self._program.partitions))
        self._trackers.start(self._params)
        self._curves = progress.SummaryWriter(self._logdir.train)
        self._evaluation_curves = {
            name: progress.SummaryWriter(self._logdir.evaluation(name)) for name in self._evaluation_inputs}
        analysis = partition_summary.table(self._program.partitions)
        self._curves.text('partitions', analysis)
        self._curves.scalars(0, {
            f'partitions/{index}_parameters': part.num_parameters
            for index, part in enumerate(self._program.partitions)})
        print(analysis)

    def _begin_save(self, checkpointer: checkpointing.Checkpointer, then: Callable[[], None] = lambda: None) -> str:
        self._bring_to_host()
        with self._time.of(progress.SAVING):
            self._writer.wait()
            with self._dog.watch(kind='copy of the state for a checkpoint'):
                path = checkpointer.begin_save(then)
            if not self._params.train.save_async:
                self._writer.wait()
        return path

    @contextlib.contextmanager
    def _writing_to_the_end(self) -> Iterator[None]:
        """Finish the checkpoint that is being written, also when an error ends the training run."""
        try:
            yield
        except BaseException:
            try:
                self._writer.wait()
            except (errors.TrainingError, tf.errors.OpError) as error:
                logging.warning('%s', error)  # the first error ends the run
            raise

    def _bring_to_host(self) -> None:
        """Bring the state to the host, and count the asynchronous steps that end before it."""
        with self._waiting_for('the newest weights'):
            self._program.before_save()
            self._step = int(self._program.global_step)

    def _num_steps_to_next_event(self) -> int:
        p, step = self._params, self._step
        intervals = [p.train.summary_interval_steps, p.eval.interval_steps]
        distances = [interval - step % interval for interval in intervals if interval]
        first = [1] if self._started is not None else []
        return min(p.train.steps_per_loop, p.train.max_steps - step, *distances, *first)

    def _train_steps(self, num_steps: int) -> None:
        begin, waited = time.monotonic(), float(self._program.batch_waits.seconds)
        try:
            with self._dog.watch(progress=self._program.position):
                result = self._program.run(self._iterator, num_steps)
            self._metrics = {name: values.numpy() for name, values in result.metrics.items()}
        except tf.errors.OutOfRangeError as error:
            raise self._input_has_ended() from error
        except _OF_INPUTS as error:
            if train_program.NON_FINITE in str(error):
                raise self._non_finite() from None
            if self._program.batch_waits.current() is None:
                raise
            raise self._input_has_failed(error) from error
        self._gradient_norm = float(result.gradient_norm)
        seconds = time.monotonic() - begin
        self._step += result.num_steps
        self._rate = result.num_steps * self._batch_size / seconds
        means = {name: float(values.mean()) for name, values in self._metrics.items()}
        if self._started is not None:
            self._progress.write(f'First step after {time.monotonic() - self._started:.1f} s')
            self._started = None
        else:
            waited = float(self._program.batch_waits.seconds) - waited
            waited = min(max(waited, 0.0), seconds)  # a clock may be set back
            self._time.add(progress.INPUT, waited)
            self._time.add(progress.STEPS, seconds - waited)
            self._progress.update(self._step, means, result.num_steps, seconds, self._time.shares())

    def _after_steps(self) -> None:
        p = self._params
        self._writer.check()
        passed = functools.partial(_has_passed, self._step_of_events, self._step)
        self._step_of_events = self._step
        if passed(p.train.summary_interval_steps):
            with self._waiting_for(f'curves of {self._logdir.train} to be written'):
                self._write_curves()
            self._tell_bad_records()
        if passed(p.eval.interval_steps) and self._step < p.train.max_steps:
            self._evaluate_between_steps()
        if time.monotonic() - self._saved_at >= p.train.save_interval_seconds:
            self._begin_save(self._checkpointer)
            self._saved_at = time.monotonic()
            self._tell_bad_records()
            if self._dog.is_worker_back():
                raise errors.WorkerIsBackError('A worker that was left out answers again.')

    def _evaluate_between_steps(self) -> None:
        """Evaluate the inputs by which choices are made: only Dev, if there is one."""
        inputs = self._evaluation_inputs
        with self._time.of(progress.EVALUATION):
            self._evaluate({'Dev': inputs['Dev']} if 'Dev' in inputs else inputs)

    def _is_evaluation_missing(self) -> bool:
        """Whether the run resumes at a step whose evaluation a signal or an error has cut off."""
        interval = self._params.eval.interval_steps
        is_due = interval and self._step and self._step % interval == 0 and self._step < self._params.train.max_steps
        return bool(is_due) and self._logdir.read_evaluated() < self._step

    def _write_curves(self) -> None:
        num_bad_records = progress.count_bad_records(self._input)
        values = {
            **{name: float(values.mean()) for name, values in self._metrics.items()},
            'learning_rate': float(self._program.learning_rate), 'gradient_norm': self._gradient_norm,
            f'{self._input.example_name}_per_second': self._rate,
            **({} if num_bad_records is None else {'bad_records': num_bad_records})}
        self._curves.scalars(self._step, values)
        self._trackers.log(self._step, values, 'train')

    def _tell_bad_records(self) -> None:
        num_bad_records = progress.count_bad_records(self._input) or 0
        if num_bad_records > self._num_told_bad_records:
            self._num_told_bad_records = num_bad_records
            self._progress.write(f'step {self._step}, bad records so far: {num_bad_records}')

    def _non_finite(self) -> errors.TrainingError:
        step = int(self._program.global_step) + 1
        self._writer.wait()
        return errors.TrainingError(
            f'The loss or a gradient of step {step} is not finite; the weights were not touched. '
            + self._where_to_resume(step - 1)
            + 'Lower the learning rate or set train.clip_gradient_norm_to_value, and run again.')

    def _where_to_resume(self, step: int) -> str:
        """Say which checkpoint a run resumes from; one with the weights of this loss would lead to this loss again."""
        paths = checkpoints.complete(self._logdir.train)
        if not paths:
            return 'There is no checkpoint yet. '
        newest, older = paths[0], paths[1:]
        if checkpoints.step_of(newest) < step:
            return f'The newest checkpoint is {newest}, of {step - checkpoints.step_of(newest)} steps before. '
        best = f'The newest checkpoint, {newest}, has the weights of this very loss: they may have grown too large. '
        if not older:
            return f'{best}There is no older one, so if it happens again, choose another --logdir. '
        return f'{best}If it happens again, delete the files {newest}.*, and training resumes from {older[0]}. '

    def _input_has_ended(self) -> errors.TrainingError:
        """Save the steps that are done, and return the error of an input that has ended."""
        path = self._save()
        return errors.TrainingError(
            f'The input of training, {self._input.source}, has ended after step {self._step}, and train.max_steps is '
            f'{self._params.train.max_steps}. Let its training_dataset repeat, as by dataset.repeat(), or set '
            f'train.max_steps={self._step}. The steps are saved in {path}.')

    def _input_has_failed(self, error: tf.errors.OpError) -> errors.TrainingError:
        """Save the steps that are done, and return the error of an input that could not make a batch."""
        path = self._save()
        return errors.TrainingError(
            f'The input of training, {self._input.source}, failed after step {self._step}: '
            f'{errors.of_input(error)} The steps are saved in {path}.')

    def _evaluate(self, inputs: dict[str, base_input.BaseInput], decode: bool = False) -> dict[str, dict[str, float]]:
        results = {}
        self._bring_to_host()
        for name, data in inputs.items():
            with self._dog.watch(kind='batch of an evaluation'):
                metrics = self._evaluator.run(
                    evaluation.batches_of(data, self._params.train, self._wait_for_batch(self._program.position)),
                    self.interrupted, decode, self._dog.beat)
            if metrics is None:
                return {}  # interrupted: the checkpoint is written first
            results[name] = metrics
            with self._waiting_for(f'curves of {self._logdir.evaluation(name)} to be written'):
                self._evaluation_curves[name].scalars(self._step, metrics)
                self._evaluation_curves[name].flush()
                self._trackers.log(self._step, metrics, name.lower())
            self._progress.write(f'step {self._step}, {name}: {progress.metrics_text(metrics)}')
        self._record(results)
        self._show_sample()
        return results

    def _show_sample(self) -> None:
        if device_kinds.has_static_shapes_only(self._task.body.stages[0].device):
            return  # generated texts change their length
        with waits.Wait('a sample of the model', _SECONDS_OF_A_SAMPLE, details=self._dog.silence_in_words):
            text = self._task.sample(self._input, self._program.read)
        if text is not None:
            with self._waiting_for(f'curves of {self._logdir.train} to be written'):
                self._curves.text('sample', text, self._step)
            self._progress.write(f'step {self._step}, sample: {text!r}')

    def _record(self, results: dict[str, dict[str, float]]) -> None:
        """Write that this evaluation has ended: after its checkpoint, if that is the best one."""
        step, record = self._step, self._best.improved(self._step, results.get('Dev') or results.get('Test') or {})

        def write() -> None:
            if record:
                self._best.write(record)
            self._logdir.write_evaluated(step)

        if record:
            self._begin_save(self._best_checkpointer, write)
            return
        self._writer.wait()  # it may have to write that an earlier evaluation has ended
        with self._waiting_for(f'the step of this evaluation to be written in {self._logdir.path}'):
            write()

    def _finish(self, path: str) -> dict[str, dict[str, float]]:
        with self._time.of(progress.EVALUATION):
            results = self._evaluate(self._evaluation_inputs, decode=True)
        self._writer.wait()
        told = progress.time_text(self._time)
        if told:
            self._progress.write(told)
        if self.interrupted and len(results) < len(self._evaluation_inputs):
            print(f'Stopped by {self.interrupted.reason} in the final evaluation; checkpoint {path}. Run the same '
                  'command again for it.', flush=True)
            return {}
        self._is_complete = True
        for name, metrics in results.items():
            print(f'Final {name} after {self._step} steps: {progress.metrics_text(metrics)}', flush=True)
        return results


def _has_passed(before: int, after: int, interval: int) -> bool:
    """Return whether there is a multiple of `interval` after step `before`, up to `after`; 0 has none."""
    return bool(interval) and after // interval > before // interval
