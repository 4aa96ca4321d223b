"""What the loss and the global norm of the gradients decide: whether a step counts, and how it is clipped."""

import tensorflow as tf


def is_finite(loss: tf.Tensor, norm: tf.Tensor) -> tf.Tensor:
    """Returns whether a step can be applied, a boolean scalar; `norm` may be squared."""
    return tf.math.is_finite(loss) & tf.math.is_finite(norm)


def clipping_factor(norm: tf.Tensor, limit: float) -> tf.Tensor:
    """Returns what to multiply gradients by, so that their global norm is at most `limit`, which is more than 0."""
    return limit / tf.maximum(norm, limit)
