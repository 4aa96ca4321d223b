"""Checks for finite steps, and dynamic loss scaling: float16 gradients are scaled up, overflowing steps are skipped."""

from collections.abc import Callable

import keras
import tensorflow as tf


def is_finite(loss: tf.Tensor, norm: tf.Tensor) -> tf.Tensor:
    """Return a boolean scalar, whether a step can be applied; `norm` may be squared."""
    return tf.math.is_finite(loss) & tf.math.is_finite(norm)


def is_scaling(optimizer: keras.optimizers.Optimizer) -> bool:
    """Whether an optimizer scales the loss by a factor that changes during training."""
    return isinstance(optimizer, keras.optimizers.LossScaleOptimizer)


def scale_of(optimizer: keras.optimizers.Optimizer) -> tf.Tensor | None:
    """Return the float32 scalar to multiply the loss by; None if the optimizer scales nothing or is not built."""
    return optimizer.dynamic_scale.value.read_value() if is_scaling(optimizer) and optimizer.built else None


def unscaled(optimizer: keras.optimizers.Optimizer) -> keras.optimizers.Optimizer:
    """Return the optimizer that updates the weights: the inner one of an optimizer that scales the loss."""
    return optimizer.inner_optimizer if is_scaling(optimizer) else optimizer


def update_if_finite(optimizer: keras.optimizers.LossScaleOptimizer, is_finite: tf.Tensor, update: Callable,
                     undo: Callable = lambda: None) -> None:
    """Update the scale by the rule of `keras.optimizers.LossScaleOptimizer`, and weights if all gradients are finite.

    A step that is not finite halves the scale; `dynamic_growth_steps` finite ones in a row double it. (Mixed Precision
    Training, arXiv 1710.03740, section 3.2.) Keras's own `apply` would divide all gradients on the first device.

    Args:
        update: function without arguments that updates everything but the scale; all of it runs, or nothing.
        undo: function without arguments that runs instead, and reverts what the step has already assigned.
    """
    tf.cond(is_finite, lambda: _done(update), lambda: _done(undo))
    count, scale = optimizer.step_counter, optimizer.dynamic_scale
    is_due = tf.equal(count.value, optimizer.dynamic_growth_steps - 1)
    growth = tf.where(is_finite, tf.where(is_due, 2.0, 1.0), 0.5)
    count.assign(tf.where(is_finite & ~is_due, count.value + 1, 0))
    scale.assign(scale.value * growth)


def _done(function: Callable) -> tf.Tensor:
    function()
    return tf.constant(True)
