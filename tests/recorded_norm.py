"""Batch norm over micro-batches in plain Keras: its inputs are noted, and its moving averages moved once for each
call."""

import functools

import keras
import numpy as np
import tensorflow as tf


class RecordedNorm:
    """A batch norm whose moving averages move at the end of a mini-batch."""

    def __init__(self, norm):
        self._norm = norm
        self._calls, self._position = [], 0
        call = norm.call

        @functools.wraps(call)
        def recording_call(inputs, training=None, mask=None):
            if training and norm.trainable:
                self._record(inputs, mask)
            return call(inputs, training=training, mask=mask)

        norm.call = recording_call

    def values(self):
        """Return the moving averages."""
        return [self._norm.moving_mean.numpy(), self._norm.moving_variance.numpy()]

    def next_micro_batch(self):
        """Say that the next call is the first of another micro-batch."""
        self._position = 0

    def move(self, values):
        """Move the averages on from `values`, once for each call."""
        momentum = self._norm.momentum
        for parts in self._calls:
            statistics = self._statistics(parts)
            values = [momentum * value + (1.0 - momentum) * new for value, new in zip(values, statistics)]
        if self._calls:
            self._norm.moving_mean.assign(values[0])
            self._norm.moving_variance.assign(values[1])
        self._calls = []

    def _record(self, inputs, mask):
        if self._position == len(self._calls):
            self._calls.append([])
        inputs = tf.cast(inputs, tf.float64).numpy()
        weights = np.ones(inputs.shape) if mask is None else np.broadcast_to(np.asarray(mask, 'float64')[..., None], inputs.shape)
        rows = [np.moveaxis(each, self._norm.axis, -1).reshape(-1, inputs.shape[self._norm.axis])
                for each in (inputs, weights)]
        self._calls[self._position].append([*rows, 0.0 if mask is None else keras.config.epsilon()])
        self._position += 1

    def _statistics(self, parts):
        inputs, weights = (np.concatenate([part[place] for part in parts]) for place in (0, 1))
        total = weights.sum(0) + parts[0][2]  # with a mask Keras adds its epsilon
        mean = (inputs * weights).sum(0) / total
        return mean, (np.square(inputs - mean) * weights).sum(0) / total
