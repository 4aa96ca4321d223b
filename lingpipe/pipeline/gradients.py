"""From sums over the mini-batch to the gradients of its mean loss: one small function a stage, on the stage's device."""

from typing import NamedTuple

import tensorflow as tf


class StageGradients(NamedTuple):
    """What one stage contributes to the update.

    Attributes:
        gradients: list of tensors, one a trainable variable.
        regularization: scalar, the sum of the stage's weight regularisers.
        squared_norm: scalar, the sum of squares of all gradients; the one number that clipping needs from each stage.
    """

    gradients: list
    regularization: tf.Tensor
    squared_norm: tf.Tensor


class GradientFinisher:
    """Divides sums by the total weight and adds weight regularisers, which so count once a step.

    Args:
        stage: the `Stage`.
    """

    def __init__(self, stage):
        self._stage = stage
        self._function = tf.function(
            self._finish, autograph=False, experimental_attributes={'_noinline': True})

    def __call__(self, weights, sums, total_weight):
        """Lays out the function on the stage's device.

        Args:
            weights: list of tensors, the stage's weights.
            sums: list of tensors, the gradients summed over examples.
            total_weight: scalar, what the loss is divided by.

        Returns:
            `StageGradients`.
        """
        with tf.device(self._stage.device):
            return StageGradients(*self._function(list(weights), list(sums), total_weight))

    def _finish(self, weights, sums, total_weight):
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(weights)
            regularization = self._regularization(weights)
        extra = tape.gradient(regularization, weights)
        gradients = [tf.math.divide_no_nan(total, tf.cast(total_weight, total.dtype)) for total in sums]
        gradients = [mean if more is None else mean + more for mean, more in zip(gradients, extra)]
        halves = [tf.nn.l2_loss(tf.cast(gradient, tf.float32)) for gradient in gradients]
        return gradients, tf.cast(regularization, tf.float32), 2.0 * tf.add_n(halves) if halves else tf.zeros([])

    def _regularization(self, weights):
        terms = [variable.regularizer(weight) for variable, weight in zip(self._stage.trainable_variables, weights)
                 if variable.regularizer is not None]
        return tf.add_n(terms) if terms else tf.zeros([])
