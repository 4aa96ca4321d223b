"""Batch norm across micro-batches: moving averages take one step a mini-batch, from the statistics of all of it."""

import keras
import numpy as np
import tensorflow as tf

from lingpipe.distribute import across_replicas, device_calls


class BatchStatistics:
    """Gathers the statistics of a stage's batch norms from micro-batch to micro-batch.

    All means stand in one row, all variances in another, so that a stage joins them with a handful of operations::

        statistics  [[mean of norm 0 | mean of norm 1 | ...],
                     [variance of 0  | variance of 1  | ...]]      [2, channels]

    Args:
        norms: list of `keras.layers.BatchNormalization` with weights.
    """

    def __init__(self, norms):
        self._norms = norms
        self._sizes = [int(norm.moving_mean.shape[0]) for norm in norms]

    @property
    def spec(self):
        """`tf.TensorSpec` `[2, channels]` of the statistics."""
        dtype = self._norms[0].moving_mean.dtype if self._norms else 'float32'
        return tf.TensorSpec([2, sum(self._sizes)], dtype)

    @property
    def initial_values(self):
        """Pairs (variable, zeros) under which the norms are to run: see `of_micro_batch`."""
        return [(variable, tf.zeros(variable.shape, variable.dtype)) for variable in self.variables]

    @property
    def variables(self):
        """The moving averages: mean and variance of each norm."""
        return [variable for pair in self._pairs() for variable in pair]

    def of_micro_batch(self, read):
        """Returns the statistics of a micro-batch, from what its forward pass made of moving averages that were 0.

        A moving average that starts at 0 becomes (1 - momentum) times the statistic of the micro-batch.

        Args:
            read: function that gives the new value of a variable.
        """
        if not self._norms:
            return tf.zeros(self.spec.shape)
        return self._rows(read) / self._per_channel([max(1.0 - norm.momentum, 1e-12) for norm in self._norms])

    def merge(self, before, new, fraction, is_empty):
        """Joins the statistics of the rows so far with those of a micro-batch (Chan, Golub, LeVeque 1979, section 2).

        Args:
            before: statistics so far `[2, channels]`.
            new: statistics of the micro-batch `[2, channels]`.
            fraction: scalar, the micro-batch's share of the rows so far, its own included.
            is_empty: scalar, whether the micro-batch has no rows; None where it is known to have some.

        Returns:
            Statistics `[2, channels]` of all rows.
        """
        if not self._norms:
            return before
        fraction = tf.cast(fraction, new.dtype)
        kept = 1.0 - fraction
        if is_empty is not None:
            new = tf.where(is_empty, before, new)
        between_means = kept * fraction * tf.square(new[0] - before[0])
        return kept * before + fraction * new + tf.stack([tf.zeros_like(between_means), between_means])

    def updates(self, statistics, read, device):
        """Returns pairs (variable, new value) of one step of every moving average.

        Args:
            statistics: statistics of this replica's share of the mini-batch `[2, channels]`; all shares are equal.
            read: function that gives the present value of a variable.
            device: name of the device that does the work.
        """
        if not self._norms:
            return []
        with tf.device(device):
            averages = [read(variable) for variable in self.variables]
        return list(zip(self.variables, device_calls.call(device, self._step, averages, _of_all_replicas(statistics, device))))

    def _step(self, averages, statistics):
        momentum = self._per_channel([norm.momentum for norm in self._norms])
        before = {id(variable): average for variable, average in zip(self.variables, averages)}
        rows = momentum * self._rows(lambda variable: before[id(variable)]) + (1.0 - momentum) * statistics
        means, variances = (tf.split(row, self._sizes) for row in tf.unstack(rows))
        return [tf.cast(value, average.dtype)
                for value, average in zip([value for pair in zip(means, variances) for value in pair], averages)]

    def _rows(self, read):
        dtype = self.spec.dtype
        return tf.stack([tf.concat([tf.cast(read(variable), dtype) for variable in row], 0)
                         for row in zip(*self._pairs())])

    def _per_channel(self, numbers):
        return tf.constant(np.repeat(numbers, self._sizes), self.spec.dtype)

    def _pairs(self):
        return [(norm.moving_mean, norm.moving_variance) for norm in self._norms]


def _of_all_replicas(statistics, device):
    count = across_replicas.num_replicas(device)
    if count == 1:
        return statistics
    with tf.device(device):
        mean = across_replicas.sum_over_replicas(device, statistics[0]) / count
        squares = statistics[1] + tf.square(statistics[0] - mean)
        return tf.stack([mean, across_replicas.sum_over_replicas(device, squares) / count])


def deferred_batch_norms(layers):
    """Returns the batch norms inside some layers whose moving averages are not frozen."""
    sublayers = [sublayer for layer in layers for sublayer in layer._flatten_layers()]
    return [layer for layer in sublayers
            if isinstance(layer, keras.layers.BatchNormalization) and layer.trainable and not _renormalizes(layer)]


def _renormalizes(norm):
    return getattr(norm, 'renorm', False)
