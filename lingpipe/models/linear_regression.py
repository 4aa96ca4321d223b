"""Regression with the mean squared error, and a comparison of the weights with the true ones."""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from lingpipe.models import base_task


class LinearRegression(base_task.BaseTask):
    """Predicts numbers by a body that ends in a `keras.layers.Dense`; for the report it must be the only layer."""

    def loss(self, targets: tuple, outputs: Any) -> dict[str, tuple]:
        """Returns the metric 'loss', the mean squared error.

        Args:
            targets: tuple (targets `[batch, num_outputs]`, weights `[batch]`).
            outputs: predictions `[batch, num_outputs]`.
        """
        wanted, weights = targets
        squares = tf.reduce_mean(tf.square(outputs - wanted), -1)
        total = tf.reduce_sum(weights)
        return {'loss': (tf.math.divide_no_nan(tf.reduce_sum(squares * weights), total), total)}

    def report(self, training_input: Any, read: Callable) -> str | None:
        """Returns a table of the weights and the true ones, if the input knows these; None for several layers."""
        if len(self.body.stack) > 1:
            return None
        dense, = self.body.stack
        found = np.concatenate([np.ravel(read(variable)) for variable in (dense.kernel, dense.bias)])
        true = np.concatenate([np.ravel(training_input.true_weights), np.ravel(training_input.true_bias)])
        names = [f'weight {index}' for index in range(len(true) - len(training_input.true_bias))]
        names += [f'bias {index}' for index in range(len(training_input.true_bias))]
        rows = [f'{name:>10}  {mine:8.4f}  {other:8.4f}' for name, mine, other in zip(names, found, true)]
        return '\n'.join([f'{"":>10}  {"found":>8}  {"true":>8}', *rows,
            f'Largest difference {np.abs(found - true).max():.4f}.'])
