"""Batch norm whose statistics may come from the examples of several replicas."""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from lingpipe.devices import collectives


@keras.saving.register_keras_serializable('lingpipe')
class BatchNormalization(keras.layers.BatchNormalization):
    """Keras's batch norm, with statistics over groups of replicas.

    Statistics of few examples are too noisy for good accuracy (Ying et al. 2018, arXiv 1811.06992, section 'distributed
    batch normalization'). The replicas of a group normalise with the mean and variance of the whole group::

        replica 0   x ─> count, sum, sum of squares ─┐   ┌─> mean, variance ─> normalise
        replica 1   x ─> count, sum, sum of squares ─┴─+─┴─> mean, variance ─> normalise

    Outside a pipeline, or with one replica, this layer is ordinary batch norm.

    Args:
        group_size: number of consecutive replicas that form a group; with fewer replicas, all form one group.
    """

    def __init__(self, group_size: int = 1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if group_size < 1:
            raise ValueError(f'group_size={group_size} is not possible: it is the number of replicas that share '
                             'statistics. Set it to 1 or more.')
        self.group_size = group_size

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), 'group_size': self.group_size}

    def _moments(self, inputs, mask):
        """Compute mean and variance for Keras."""
        weights = None if mask is None else tf.cast(mask, inputs.dtype)[..., tf.newaxis]
        count, total, squares = _sums(inputs, weights, self._reduction_axes)
        sums = collectives.sum_over_group(tf.concat([[count], total, squares], 0), self.group_size)
        count, total, squares = tf.split(sums, [1, total.shape[0], squares.shape[0]])
        mean = tf.math.divide_no_nan(total, count)
        return mean, tf.maximum(tf.math.divide_no_nan(squares, count) - tf.square(mean), 0.0)


def group_sizes(layers: Sequence[keras.layers.Layer]) -> dict[int, str]:
    """Return {group size above 1: name of the first layer with this size}. The layers must be built."""
    sizes: dict[int, str] = {}
    for layer in layers:
        for nested in layer._flatten_layers():
            if getattr(nested, 'group_size', 1) > 1:
                sizes.setdefault(nested.group_size, layer.name)
    return sizes


def _sums(inputs, weights, axes):
    if weights is not None:
        weights = tf.broadcast_to(weights, tf.shape(inputs))
        weighted = inputs * weights
        count = tf.reduce_sum(weights) / inputs.shape[-1]
        return count, tf.reduce_sum(weighted, axes), tf.reduce_sum(weighted * inputs, axes)
    total = tf.reduce_sum(inputs, axes)
    count = tf.cast(tf.size(inputs, tf.int64) // total.shape[0], inputs.dtype)
    return count, total, tf.reduce_sum(tf.square(inputs), axes)
