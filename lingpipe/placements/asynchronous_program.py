"""Asynchronous updates: every worker applies its gradients as soon as it has them."""

import functools
from typing import Any

import tensorflow as tf

from lingpipe import hyperparams
from lingpipe.cluster import waits
from lingpipe.placements import server_program


class AsynchronousProgram(server_program.ServerProgram):
    """A `ServerProgram` in which no worker waits for another (Dean et al. 2012, "Large scale distributed deep
    networks", section 4.1).

    ::

        worker 0   read version 5 ─> gradients ──────────> 2 updates since: staleness 2 ─> apply, count: version 8
        worker 1          read version 5 ─> gradients ─> staleness 1 ─> apply, count: 7

    A gradient counts as a step whatever its staleness, the number of updates that others applied between its reading
    and its applying; one that is staler than `max_staleness` is dropped and does not count, and its batch is lost.

    What servers add to weights is never lost. A slot that the optimizer computes anew (momentum), a moving statistic of
    batch norm and a moving average of weights are those of the last writer: of two that write at a time one is lost.

    A worker that dies in the middle of a step has it done again by another, which then sees its batch once more: at
    least once, never less. What it had applied already stays, so a step may be counted twice. A batch is handed out in
    the order of a single machine's; between two checkpoints it is not known which are done, and a training run that
    resumes starts at the batch whose number is that of the step. Where workers read for themselves, worker w gets
    batches w, W + w, 2 W + w, ... at its own pace, and one that comes back begins where the training run did.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._num_dropped = 0

    def run(self, iterator: Any, num_steps: int) -> Any:
        rows = []
        while len(rows) < num_steps and not (rows and self.stopping.numpy()):
            self._hand_out(iterator)
            rows += self._next_rows()
        return self._result_with_staleness(rows)

    def state_restored(self) -> None:
        super().state_restored()
        self._done = int(self.global_step)

    def before_save(self) -> None:
        """Lets all steps that are under way end, so that weights and their number belong together."""
        while self._calls.num_under_way:
            self._next_rows()
        super().before_save()

    def _hand_out(self, iterator):
        """Goes up to the last step, so that none must be thrown away."""
        left = self._params.max_steps - self._done
        while self._calls.num_under_way < min(self._calls.limit, left):
            self._calls.call((iterator,) if self._is_read_by_workers else tuple(
                tf.nest.flatten(self._next_batch(iterator))))

    def _next_rows(self):
        """Returns a list with the next answer, or without it where the gradient was dropped."""
        row = self._next_answer()
        is_applied, row = row[0], row[1:]
        self._done += int(is_applied)
        self._num_dropped += 1 - int(is_applied)
        return [row] if is_applied else []

    def _result_with_staleness(self, rows):
        result = self._result(rows)
        staleness = result.metrics['staleness']
        result.metrics['staleness_max'] = tf.fill(tf.shape(staleness), tf.reduce_max(staleness))
        if self._servers.max_staleness is not None:
            result.metrics['dropped'] = tf.fill(tf.shape(staleness), float(self._num_dropped))
        return result

    def open_input(self, data: Any, step: int) -> Any:
        """Each worker that reads for itself takes one of W batches at a time, each as large as that of the params."""
        if not self._is_read_by_workers:
            return super().open_input(data, step)
        count = self._servers.num_workers
        params = hyperparams.CopyFieldsTo(data.params, type(data).Params())  # which are not frozen
        whole = params.Set(batch_size=count * data.params.batch_size).Instantiate()
        position = step // count * whole.params.batch_size
        with waits.for_batch(data.source, self._params.input_timeout_seconds, int):
            return self._servers.iterators(functools.partial(whole.training_dataset, position), self._rows_spec)

    def _traced(self, batch_spec):
        return tf.function(self._call, autograph=False).get_concrete_function(*self._argument_specs(batch_spec))

    def _call(self, *arguments):
        """Lays out the step of a worker: a row of whether it was applied, its gradients' norm, and the metrics."""
        batch = self._batch_of(arguments)
        version = self.global_step.read_value()
        with tf.control_dependencies([version]):
            out, metrics = self._value_and_grad(batch, version)
        with tf.control_dependencies([out.loss, *(gradient for gradient in out.gradients if gradient is not None)]):
            staleness = self.global_step.read_value() - version
        is_applied = self._train_unless_stale(staleness, out, version)
        row = self._row(tf.sqrt(out.squared_norm), {**metrics, 'staleness': tf.cast(staleness, tf.float32)})
        return tf.concat([[tf.cast(is_applied, tf.float32)], row], 0)

    def _train_unless_stale(self, staleness, out, version):
        def update():
            self._train_on(out, version)
            return tf.constant(True)

        limit = self._servers.max_staleness
        with tf.control_dependencies([staleness]):
            return update() if limit is None else tf.cond(staleness <= limit, update, lambda: tf.constant(False))
