"""Base class of training programs with weights on parameter servers, and the program with asynchronous updates."""

import time
from typing import Any

import numpy as np
import tensorflow as tf

from lingpipe.optimizers import device_placement
from lingpipe.partition import balancing
from lingpipe.training import errors, train_program

_POLL_SECONDS = 0.5


class ServerProgram(train_program.TrainProgram):
    """A `TrainProgram` whose step runs on workers and servers.

    The chief reads the batches and sends them to the workers. The data and their order are the same as on one machine.

    Args:
        task: a `BaseTask` whose body is built with its variables on the servers.
        batch_spec: nest of `tf.TensorSpec`s of a training batch, with shapes `[batch, ...]`.

    Raises:
        ValueError: layers compute in float16.
    """

    def __init__(self, task: Any, train_params: Any, servers: Any, batch_spec: Any) -> None:
        if task.body.computes_in_float16:
            raise ValueError("dtype_policy='mixed_float16' does not go with parameter servers: the scale of the loss "
                             "would depend on who comes first. Set it to 'mixed_bfloat16' or 'float32'.")
        self._servers, self._batch_spec = servers, batch_spec
        super().__init__(task, train_params)
        with tf.device(servers.names[0]):  # this server counts steps by `assign_add`, which loses no count
            self.global_step = tf.Variable(0, dtype=tf.int64, trainable=False, name='global_step')
        self._calls = servers.calls(self._traced(batch_spec))

    def _traced(self, batch_spec):
        """Return the concrete function that a worker runs on a batch, or on a share of the batch."""
        raise NotImplementedError

    @property
    def learning_rate(self) -> Any:
        return self._learning_rate(self.global_step.read_value())

    def _learning_rate(self, step):
        rate = self.optimizer._learning_rate
        return tf.cast(rate(step) if callable(rate) else rate.value, tf.float32)

    @property
    def partitions(self) -> Any:
        return [part._replace(device=f'{balancing.short_device(part.device)} of {self._servers.num_workers} workers')
                for part in super().partitions]

    def before_save(self) -> None:
        self.optimizer.iterations.assign(self.global_step.read_value())

    def run(self, iterator: Any, num_steps: int) -> Any:
        rows = []
        while len(rows) < num_steps and not (rows and self.stopping.numpy()):
            rows.append(self._run_step(iterator))
        return self._result(rows)

    def _run_step(self, iterator):
        """Run a step on the workers, and return its gradient norm and metrics as one array."""
        raise NotImplementedError

    def _apply(self, gradients, step):
        device_placement.of(self.optimizer).apply_values(  # servers lose no addition if several workers add at once
            gradients, self._trainable, self._learning_rate(step), step)

    def _next_answer(self):
        """Wait until a worker returns a result, and return it as an array."""
        limit, begin = self._servers.timeout_seconds, time.monotonic()
        while (answer := self._calls.next_answer(_POLL_SECONDS)) is None:
            if limit and time.monotonic() - begin > limit:
                raise errors.LostWorkerError(
                    f'No worker ended a step in {limit:g} s (--step_timeout_seconds); no answer comes from '
                    f'{", ".join(self._servers.silent_tasks()) or "none of them, though all can be reached"}. Restart '
                    'what has ended, and run the same command: training resumes from its newest checkpoint.')
        self.batch_waits.count_step()  # progress, also when no more batches are needed
        return answer

    def _row(self, norm, metrics):
        """Return the gradient norm and the metrics of a step as one tensor."""
        self._metric_names = list(metrics)
        return tf.stack(list(train_program.numbers_of(norm, metrics).values()))  # needs only one transfer

    def _result(self, rows):
        """Make a `StepResult` from the arrays that `_run_step` has returned, one per step."""
        rows = np.stack(rows)
        metrics = {name: tf.constant(column) for name, column in zip(self._metric_names, rows[:, 1:].T)}
        return train_program.StepResult(len(rows), tf.constant(rows[-1, 0]), metrics)


class AsynchronousProgram(ServerProgram):
    """A `ServerProgram` in which no worker waits for another.

    ::

        worker 0   read version 5 ─> gradients ──────────> 2 updates since: staleness 2 ─> apply, count: version 8
        worker 1          read version 5 ─> gradients ─> staleness 1 ─> apply, count: 7

    The staleness of a gradient is the number of updates by other workers after this worker reads the weights and before
    it applies the gradient (Dean et al. 2012, "Large scale distributed deep networks", section 4.1). If a worker is
    lost, another worker repeats the step with the same batch. Each batch is used at least once.
    """

    def state_restored(self) -> None:
        self._done = int(self.global_step)

    def before_save(self) -> None:
        """Wait for all current steps. The weights then match the step number."""
        while self._calls.num_under_way:
            self._next_row()
        self.global_step.assign(self._done)  # a call that was repeated has counted twice
        super().before_save()

    def _run_step(self, iterator):
        """Send batches to the workers, and return the result array of the next finished step."""
        left = self._params.max_steps - self._done
        while self._calls.num_under_way < min(self._calls.limit, left):
            self._calls.call(tuple(tf.nest.flatten(self.batch_waits.next_batch(iterator))))
        return self._next_row()

    def _next_row(self):
        """Return the result array of the next finished step, and count the step."""
        row = self._next_answer()
        self._done += 1
        return row

    def _traced(self, batch_spec):
        return tf.function(self._call, autograph=False).get_concrete_function(*tf.nest.flatten(batch_spec))

    def _call(self, *arguments):
        """Build a worker's step, and return its gradient norm and metrics as one tensor."""
        batch = tf.nest.pack_sequence_as(self._batch_spec, arguments)
        version = self.global_step.read_value()
        with tf.control_dependencies([version]):
            out, metrics = self._value_and_grad(batch, version)
        with tf.control_dependencies([out.loss, *(gradient for gradient in out.gradients if gradient is not None)]):
            staleness = self.global_step.read_value() - version
        with tf.control_dependencies([staleness]):
            # Weights lose no addition. Of two simultaneous writes to slots or moving statistics, one is lost.
            norm = self._train_on(out, version)
        return self._row(norm, {**metrics, 'staleness': tf.cast(staleness, tf.float32)})
