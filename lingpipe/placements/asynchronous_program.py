"""Asynchronous updates: every worker applies its gradients as soon as it has them."""

import tensorflow as tf

from lingpipe.placements import server_program


class AsynchronousProgram(server_program.ServerProgram):
    """A `ServerProgram` in which no worker waits for another (Dean et al. 2012, "Large scale distributed deep
    networks", section 4.1).

    ::

        worker 0   read version 5 ─> gradients ──────────> 2 updates since: staleness 2 ─> apply, count: version 8
        worker 1          read version 5 ─> gradients ─> staleness 1 ─> apply, count: 7

    The staleness of a gradient is the number of updates that other workers applied between the reading of the weights
    and its own update.

    What servers add to weights is never lost. Slots that the optimizer recomputes (momentum), moving statistics of
    batch norm and moving averages of weights have the value of the last writer: of two simultaneous updates one is
    lost.

    If a worker is lost in the middle of a step, another worker repeats the step with the same batch: each batch is used
    at least once. What the lost worker had already applied stays, so a batch may be applied twice; a checkpoint counts
    it as one step. Batches are distributed in the order of a single machine. Between two checkpoints it is not known
    which of them are done, so a run resumes at the batch whose number is that of the step.
    """

    def state_restored(self) -> None:
        self._done = int(self.global_step)

    def before_save(self) -> None:
        """Wait for all current steps, so that weights and step number match, and count each batch once."""
        while self._calls.num_under_way:
            self._next_row()
        self.global_step.assign(self._done)  # a call that was repeated has counted twice
        super().before_save()

    def _run_step(self, iterator):
        """Start calls, but not more than there are steps left, so that no step is wasted; wait for one of them."""
        left = self._params.max_steps - self._done
        while self._calls.num_under_way < min(self._calls.limit, left):
            self._calls.call(tuple(tf.nest.flatten(self.batch_waits.next_batch(iterator))))
        return self._next_row()

    def _next_row(self):
        """Return the next answer, and count its step."""
        row = self._next_answer()
        self._done += 1
        return row

    def _traced(self, batch_spec):
        return tf.function(self._call, autograph=False).get_concrete_function(*tf.nest.flatten(batch_spec))

    def _call(self, *arguments):
        """Build the step of a worker; return a row of the gradient norm and the metrics."""
        batch = tf.nest.pack_sequence_as(self._batch_spec, arguments)
        version = self.global_step.read_value()
        with tf.control_dependencies([version]):
            out, metrics = self._value_and_grad(batch, version)
        with tf.control_dependencies([out.loss, *(gradient for gradient in out.gradients if gradient is not None)]):
            staleness = self.global_step.read_value() - version
        with tf.control_dependencies([staleness]):
            norm = self._train_on(out, version)
        return self._row(norm, {**metrics, 'staleness': tf.cast(staleness, tf.float32)})
