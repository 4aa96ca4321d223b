"""Evaluating a pipeline over a whole dataset."""

import tensorflow as tf

from lingpipe.devices import device_kinds, variable_values
from lingpipe.training import placement as placements


class Evaluator:
    """Runs the task over an evaluation dataset, through the same pipeline that trains.

    Args:
        task: a `BaseTask` whose body is built.
        read: function that gives the value to use for a Keras variable.
        placement: the `Placement` that the body is on; None: the devices of this process.
    """

    def __init__(self, task, read=variable_values.read_variable, placement=None):
        self._task = task
        self._read = read
        self._placement = placement or placements.Placement()
        self._can_decode = not device_kinds.has_static_shapes_only(task.body.stages[0].device)  # a text grows step by step
        self._function = tf.function(self._batch, autograph=False)

    def run(self, dataset, interrupted=False, decode=False, on_batch=lambda: None):
        """Computes the metrics over all examples, each weighted by its weight.

        Args:
            dataset: finite `tf.data.Dataset` of (images, labels, weights), all batches of one shape.
            interrupted: object that becomes true when somebody wants the program to stop.
            decode: whether to compute the task's `decoding_metrics` too, where the devices can.
            on_batch: function to call after each batch.

        Returns:
            Dictionary from name to mean, as floats; None where it was interrupted.
        """
        sums = []
        for batch in dataset:
            if interrupted:
                return None
            sums.append(self._function(batch, decode and self._can_decode))
            on_batch()
        totals = tf.nest.map_structure(lambda *parts: float(sum(float(part) for part in parts)), *sums)
        return {name: total / weight if weight else 0.0 for name, (total, weight) in totals.items()}

    def _batch(self, batch, decode):
        images, *targets = batch
        metrics = self._placement.evaluate(self._metrics, batch)
        return {**metrics, **(self._task.decoding_metrics(images, tuple(targets), self._read) if decode else {})}

    def _metrics(self, batch):
        images, *targets = batch
        return self._task.body.evaluate(self._task.loss, images, tuple(targets), read=self._read)
