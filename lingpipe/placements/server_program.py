"""Training steps whose weights live on parameter servers: what asynchronous and synchronous updates share."""

import queue
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from lingpipe.optimizers import device_placement
from lingpipe.training import errors, train_program

_POLL_SECONDS, _RETRY_SECONDS = 0.5, 0.1


class RemoteCalls:
    """Calls of one function that are under way at a time, up to a number.

    The coordinator of a cluster only tells when all calls have ended, or waits for one of them; here a thread waits for
    each::

        call(...) ─> coordinator ─> worker 0, worker 1, ... ─> answers ─> next_answer()
                         a worker dies: another one, or the same once it is back, does its call again

    Args:
        coordinator: `tf.distribute.coordinator.ClusterCoordinator`.
        function: concrete function.
        limit: largest number of calls under way.
    """

    def __init__(self, coordinator: tf.distribute.coordinator.ClusterCoordinator, function: Callable,
                 limit: int) -> None:
        self._coordinator, self._function, self.limit = coordinator, function, limit
        self.num_under_way = 0
        self._values, self._answers = queue.Queue(), queue.Queue()
        for index in range(limit):
            threading.Thread(target=_fetch, args=(self._values, self._answers), name=f'remote call {index}',
                             daemon=True).start()

    def call(self, arguments: tuple) -> None:
        """Sends a call off.

        Args:
            arguments: tuple of tensors.

        Raises:
            Exception: what an earlier call failed with.
        """
        self._values.put(self._coordinator.schedule(self._function, args=arguments))
        self.num_under_way += 1

    def next_answer(self, seconds: Any) -> Any:
        """Waits for a call to end.

        Args:
            seconds: how long to wait.

        Returns:
            What the call returned, as nest of NumPy arrays; None where none has ended yet.

        Raises:
            Exception: what the call failed with.
        """
        try:
            answer, error = self._answers.get(timeout=seconds)
        except queue.Empty:
            self._coordinator.done()  # which raises what the cluster failed with
            return None
        self.num_under_way -= 1
        if error is not None:
            raise error
        return answer


def _fetch(values, answers):
    """Runs in a thread, which must not keep the function from being forgotten while its servers still run."""
    while True:
        value = values.get()
        answers.put(_answer(value))
        del value


def _answer(value):
    """Returns what a call returned and what it failed with, one of them None.

    A worker may die after a call has ended and before its result is here. The coordinator copies the result too, sees
    the same and has the call done again, so an error counts only where the coordinator has set it.
    """
    while True:
        try:
            return value.fetch(), None
        except Exception as error:  # which the thread that asks gets to see
            if value._get_error() is error:
                return None, error
        time.sleep(_RETRY_SECONDS)


class ServerProgram(train_program.TrainProgram):
    """A `TrainProgram` whose step is spread over workers and servers.

    The chief reads the batches and hands them out, so that the data and their order are those of one machine, and
    inputs may run any Python code. Steps are counted on a server by `assign_add`, which loses no count. (Keras's own
    counter of updates is read, changed and written, and so loses some; it gets the number of steps before each
    checkpoint.)

    Args:
        task: a `BaseTask` whose body is built with its variables on the servers.
        train_params: the Params of training.
        servers: the `ParameterServers`.
        batch_spec: nest of `tf.TensorSpec` `[batch, ...]` of a training batch.

    Raises:
        ValueError: layers compute in float16.
    """

    def __init__(self, task: Any, train_params: Any, servers: Any, batch_spec: Any) -> None:
        if task.body.computes_in_float16:
            raise ValueError("dtype_policy='mixed_float16' does not go with parameter servers: the scale of the loss "
                             "would depend on who comes first. Set it to 'mixed_bfloat16' or 'float32'.")
        super().__init__(task, train_params)
        self._servers, self._batch_spec = servers, batch_spec
        with tf.device(servers.names[0]):
            self.global_step = tf.Variable(0, dtype=tf.int64, trainable=False, name='global_step')
        self._calls = servers.calls(self._traced(tf.nest.flatten(batch_spec)))

    def _traced(self, batch_specs):
        """Returns the concrete function that workers run, of tensors of these specs `[batch, ...]`."""
        raise NotImplementedError

    def _packed(self, tensors):
        return tf.nest.pack_sequence_as(self._batch_spec, tensors)

    @property
    def learning_rate(self) -> Any:
        return self._learning_rate(self.global_step.read_value())

    def _learning_rate(self, step):
        rate = self.optimizer._learning_rate
        return tf.cast(rate(step) if callable(rate) else rate.value, tf.float32)

    @property
    def partitions(self) -> Any:
        return [part._replace(device=f'{tf.DeviceSpec.from_string(part.device).device_type}:'
                              f'{tf.DeviceSpec.from_string(part.device).device_index} of {self._servers.num_workers} '
                              'workers')
                for part in super().partitions]

    def before_save(self) -> None:
        self.optimizer.iterations.assign(self.global_step.read_value())

    def _apply(self, gradients, step):
        """Lays out the optimizer's arithmetic on each variable's server; what it adds to a weight is never lost."""
        device_placement.apply_values(self.optimizer, gradients, self._trainable, self._learning_rate(step), step)

    def _next_answer(self):
        """Returns the next answer of a worker.

        Raises:
            LostWorkerError: none came in time.
        """
        limit, begin = self._servers.timeout_seconds, time.monotonic()
        while (answer := self._calls.next_answer(_POLL_SECONDS)) is None:
            if limit and time.monotonic() - begin > limit:
                raise errors.LostWorkerError(
                    f'No worker ended a step in {limit:g} s (--step_timeout_seconds); no answer comes from '
                    f'{", ".join(self._servers.silent_tasks()) or "none of them, though all can be reached"}. Start '
                    'what has died again, and run the same command: training resumes from its newest checkpoint.')
        return answer

    def _result(self, rows):
        """Makes a `StepResult` of rows as the step returns them: gradient norm, then the metrics."""
        rows = np.stack(rows)
        metrics = {name: tf.constant(column) for name, column in zip(self._metric_names, rows[:, 1:].T)}
        return train_program.StepResult(len(rows), tf.constant(rows[-1, 0]), metrics)
