"""Training of an experiment, from the beginning or the newest checkpoint."""

import contextlib
import functools
import time
from collections.abc import Callable

import tensorflow as tf

from lingpipe.cluster import waits
from lingpipe.devices import device_kinds
from lingpipe.input import base_input
from lingpipe.training import (
    checkpointing,
    checkpoints,
    errors,
    evaluation,
    interruption,
    prepared_run,
    progress,
    trackers,
    train_program,
    watchdog,
)

# What an input raises; other errors may come from other machines.
_OF_INPUTS = (tf.errors.InvalidArgumentError, tf.errors.UnknownError, tf.errors.DataLossError, tf.errors.NotFoundError,
              tf.errors.PermissionDeniedError, tf.errors.UnimplementedError)


class Trainer(prepared_run.PreparedRun):
    """A training run with evaluations, checkpoints and curves. A stopped run resumes from the newest checkpoint.

    Attributes:
        interrupted: the `Interruption` by which a signal asks to stop.
    """

    def run(self) -> dict:
        """Train up to `train.max_steps`, or until a signal asks to stop.

        Returns:
            Dictionary from dataset name to the final metrics; empty if a signal stopped the training.

        Raises:
            ValueError: `eval.best_metric` or the examples of an evaluation do not fit the task.
            TrainingError: a loss is not finite, the input ends or fails, or the log directory fails.
            WorkerIsBackError: a lost worker answers again.
        """
        with self._logdir.lock():
            status = trackers.FAILED
            try:
                results = self._run()
                status = trackers.FINISHED if self._is_complete else trackers.KILLED
                return results
            finally:
                self._trackers.end(status)
                told = progress.bad_records_text({'Train': self._input, **self._evaluation_inputs})
                if told:
                    print(told, flush=True)

    def run_to_exit_code(self) -> int:
        """Call `run`. Return 0 if the run is complete, else EXIT_TRY_AGAIN."""
        self.run()
        return 0 if self._is_complete else errors.EXIT_TRY_AGAIN

    def _run(self) -> dict[str, dict[str, float]]:
        p = self._params.train
        self._time, self._is_complete = progress.TimeSpent(), False
        self._begin()
        self._step_of_events = self._step
        self._program.stopping.assign(False)
        with interruption.catch_signals(lambda: self._program.stopping.assign(True)) as self.interrupted, \
                contextlib.closing(self._writer):
            self._dog.listen(self.interrupted.ask)
            self._progress = progress.Progress(
                p.max_steps, self._step, self._input.params.batch_size, self._input.example_name)
            try:
                with self._program.watching_input(self._input, self._wait_for_batch(self._program.batch_waits.current)):
                    self._train()
            finally:
                self._progress.close()
                self._iterator = None  # an input that Python makes must be closed before Python shuts down
            path = self._save()
            if self._program.should_stop(self.interrupted) and self._step < p.max_steps:
                print(self._stopped(self._step, path), flush=True)
                return {}
            return self._finish(path)

    def _train(self) -> None:
        self._saved_at = time.monotonic()
        interval = self._params.eval.interval_steps
        if interval and self._step and self._step % interval == 0 and self._step < self._params.train.max_steps:
            self._evaluate_between_steps()  # a signal may have cut it off
        while self._step < self._params.train.max_steps and not self._program.should_stop(self.interrupted):
            self._train_steps(self._num_steps_to_next_event())
            try:
                self._after_steps()
            except Exception as error:
                if errors.exit_code(error) != errors.EXIT_TRY_AGAIN:
                    with contextlib.suppress(errors.TrainingError, tf.errors.OpError):  # the first error ends the run
                        print(f'The steps up to {self._step} are saved: {self._save()}.', flush=True)
                raise

    def _save(self) -> str:
        path = self._begin_save(self._checkpointer)
        with self._time.of(progress.SAVING):
            self._writer.wait()
        return path

    def _wait_for_batch(self, position: Callable[[], int | None]) -> Callable[..., waits.Wait]:
        """Return `watchdog.for_batch`, set to save a checkpoint and end the process at a timeout."""
        return functools.partial(
            watchdog.for_batch, on_timeout=functools.partial(self._end_without_batch, position),
            is_urgent=lambda: bool(self.interrupted))

    def _end_without_batch(self, position: Callable[[], int | None], sentence: str) -> None:
        """Save a checkpoint and end the process, because no batch has come."""
        self._dog.beat()
        try:
            self._program.before_save()
            path = self._checkpointer.save(position)
            if path is None:  # a batch has come
                return
        except (errors.TrainingError, tf.errors.OpError) as error:
            waits.end_process(f'{sentence} {error}')
        self._trackers.end(trackers.KILLED if self.interrupted else trackers.FAILED)
        if self.interrupted:
            print(self._stopped(checkpoints.step_of(path), path), flush=True)
            self.interrupted.end_process()  # a waiting step cannot be cancelled
        waits.end_process(f'{sentence} The steps before were saved: checkpoint {path}.')

    def _stopped(self, step: int, path: str) -> str:
        return (f'Stopped by {self.interrupted.reason or "another worker"} at step {step}; checkpoint {path}. Run the '
                'same command again to resume from there.')

    def _begin_save(self, checkpointer: checkpointing.Checkpointer, then: Callable[[], None] = lambda: None) -> str:
        self._bring_to_host()
        with self._time.of(progress.SAVING):
            self._writer.wait()
            with self._dog.watch(kind='copy of the state for a checkpoint'):
                path = checkpointer.begin_save(then)
            if not self._params.train.save_async:
                self._writer.wait()
        return path

    def _bring_to_host(self) -> None:
        """Copy the state to the host, and update `self._step`."""
        with self._waiting_for('the newest weights'):
            self._program.before_save()
            self._step = int(self._program.global_step)  # asynchronous steps may have ended

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
            raise self._error_of_input(
                'has ended', f'train.max_steps is {self._params.train.max_steps}. Let its training_dataset repeat, as '
                'by dataset.repeat(), or lower train.max_steps.') from error
        except _OF_INPUTS as error:
            if train_program.NON_FINITE in str(error):
                raise self._non_finite() from None
            if self._program.batch_waits.current() is None:
                raise
            raise self._error_of_input('failed', errors.of_input(error)) from error
        self._gradient_norm = float(result.gradient_norm)
        seconds = time.monotonic() - begin
        self._step += result.num_steps
        self._rate = result.num_steps * self._input.params.batch_size / seconds
        means = {name: float(values.mean()) for name, values in self._metrics.items()}
        if self._started is not None:  # the first step builds the graph
            self._progress.write(f'First step after {time.monotonic() - self._started:.1f} s')
            self._started = None
        else:
            waited = float(self._program.batch_waits.seconds) - waited
            waited = min(max(waited, 0.0), seconds)  # a clock may be set back
            self._time.seconds[progress.INPUT] += waited
            self._time.seconds[progress.STEPS] += seconds - waited
            self._progress.update(self._step, means, result.num_steps, seconds)

    def _after_steps(self) -> None:
        p = self._params
        self._writer.check()
        passed = functools.partial(_has_passed, self._step_of_events, self._step)
        self._step_of_events = self._step
        if passed(p.train.summary_interval_steps):
            self._write_curves()
        if passed(p.eval.interval_steps) and self._step < p.train.max_steps:
            self._evaluate_between_steps()
        if time.monotonic() - self._saved_at >= p.train.save_interval_seconds:
            self._begin_save(self._checkpointer)
            self._saved_at = time.monotonic()
            if self._dog.is_worker_back():
                raise errors.WorkerIsBackError('A worker that was left out answers again.')

    def _evaluate_between_steps(self) -> None:
        """Evaluate on Dev, or on Test if there is no Dev."""
        inputs = self._evaluation_inputs
        self._evaluate({'Dev': inputs['Dev']} if 'Dev' in inputs else inputs)  # Test must not influence choices

    def _write_curves(self) -> None:
        bad = self._input.bad_records
        values = {
            **{name: float(values.mean()) for name, values in self._metrics.items()},
            'learning_rate': float(self._program.learning_rate), 'gradient_norm': self._gradient_norm,
            f'{self._input.example_name}_per_second': self._rate,
            **({} if bad is None else {'bad_records': len(bad)})}
        self._trackers.log('train', self._step, values)

    def _non_finite(self) -> errors.TrainingError:
        step = int(self._program.global_step) + 1
        self._writer.wait()
        paths = checkpoints.complete(self._logdir.train)
        newest = (f'The newest checkpoint is {paths[0]}; if training from there fails again, delete its files.' if paths
                  else 'There is no checkpoint yet.')
        return errors.TrainingError(
            f'The loss or a gradient of step {step} is not finite; the weights were not touched. '
            f'{newest} Lower the learning rate or set train.clip_gradient_norm_to_value, and run again.')

    def _error_of_input(self, what: str, why: str) -> errors.TrainingError:
        """Save a checkpoint, and return the error for an input that gives no more batches."""
        path = self._save()  # this updates `self._step`
        return errors.TrainingError(f'The input of training, {self._input.source}, {what} after step {self._step}: '
                                    f'{why} The steps are saved in {path}.')

    def _evaluate(self, inputs: dict[str, base_input.BaseInput], decode: bool = False) -> dict[str, dict[str, float]]:
        results = {}
        self._bring_to_host()
        for name, data in inputs.items():
            with self._time.of(progress.EVALUATION), self._dog.watch(kind='batch of an evaluation'):
                metrics = self._evaluator.run(
                    evaluation.batches_of(data, self._params.train, self._wait_for_batch(self._program.position)),
                    self.interrupted, decode, self._dog.beat)
            if metrics is None:
                return {}  # interrupted: the checkpoint is written first
            results[name] = metrics
            self._trackers.log(name, self._step, metrics)
            self._progress.write(f'step {self._step}, {name}: {progress.metrics_text(metrics)}')
        self._save_best(results)
        self._show_sample()
        return results

    def _show_sample(self) -> None:
        if device_kinds.has_static_shapes_only(self._task.body.stages[0].device):
            return  # generated texts change their length
        with self._time.of(progress.EVALUATION):
            text = self._task.sample(self._input, self._program.read)
        if text is not None:
            self._trackers.text('sample', text, self._step)
            self._progress.write(f'step {self._step}, sample: {text!r}')

    def _save_best(self, results: dict[str, dict[str, float]]) -> None:
        """Save the current state if it is the best so far."""
        record = self._best.improved(self._step, results.get('Dev') or results.get('Test') or {})
        if record:
            self._begin_save(self._best_checkpointer, lambda: self._best.write(record))

    def _finish(self, path: str) -> dict[str, dict[str, float]]:
        results = self._evaluate(self._evaluation_inputs, decode=True)
        self._writer.wait()
        if self._time.seconds[progress.STEPS]:
            self._progress.write(str(self._time))
        if self.interrupted and len(results) < len(self._evaluation_inputs):
            print(self._stopped(self._step, path), flush=True)
            return {}
        self._is_complete = True
        for name, metrics in results.items():
            print(f'Final {name} after {self._step} steps: {progress.metrics_text(metrics)}', flush=True)
        return results


def _has_passed(before: int, after: int, interval: int) -> bool:
    """Return whether there is a multiple of `interval` after step `before`, up to step `after`."""
    return bool(interval) and after // interval > before // interval
