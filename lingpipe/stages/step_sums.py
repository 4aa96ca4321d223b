"""What a run of the pipeline leaves behind for the rest of the step."""

from typing import NamedTuple

import tensorflow as tf


class Rows(NamedTuple):
    """Gradient of a weight of which only some rows were looked up, as of an embedding: what `tf.IndexedSlices` hold.

    Attributes:
        values: tensor `[lookups, ...]`.
        indices: tensor `[lookups]`, the row that each was looked up in; one that was looked up twice comes twice.
    """

    values: tf.Tensor
    indices: tf.Tensor


class Sums(NamedTuple):
    """What a run of the pipeline leaves behind, still in sums over the mini-batch.

    Attributes:
        metrics: dictionary from name to (sum, weight), on the last stage.
        losses: for each stage whose layers add losses, the pair (sum, rows).
        weights: for each stage, the list of the Keras variables that a loss depends on.
        weight_gradients: for each stage, the list of the sums of their gradients, or of the `Rows` of all micro-batches.
        input_gradients: for each micro-batch, the list of gradients of its differentiable inputs; empty where not asked for.
    """

    metrics: dict
    losses: list
    weights: list
    weight_gradients: list
    input_gradients: list


def join(parts):
    """Returns one `Rows` of several."""
    return Rows(*[tf.concat(each, 0) if len(each) > 1 else each[0] for each in zip(*parts)])


def total(parts, shape):
    """Adds up the gradients of one weight.

    Args:
        parts: list of tensors and `Rows`, at least one.
        shape: shape of the weight.

    Returns:
        Tensor, or `tf.IndexedSlices` where all parts are `Rows`.
    """
    if all(isinstance(part, Rows) for part in parts):
        return tf.IndexedSlices(*join(parts), tf.constant(tuple(shape), tf.int64))
    dense = [tf.math.unsorted_segment_sum(*part, shape[0]) if isinstance(part, Rows) else part for part in parts]
    return tf.add_n(dense) if len(dense) > 1 else dense[0]


def add_up(parts):
    """Adds in one order always; tf.add_n takes the order in which it can save memory."""
    return tf.nest.map_structure(lambda *values: tf.reduce_sum(tf.stack(values), 0), *parts) if parts else {}
