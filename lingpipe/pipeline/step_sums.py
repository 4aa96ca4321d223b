"""What a run of the pipeline leaves behind for the rest of the step."""

from typing import NamedTuple

import tensorflow as tf


class Sums(NamedTuple):
    """What a run of the pipeline leaves behind, still in sums over the mini-batch.

    Attributes:
        metrics: dictionary from name to (sum, weight), on the last stage.
        losses: for each stage whose layers add losses, the pair (sum, rows).
        weights: for each stage, the list of the Keras variables that a loss depends on.
        weight_gradients: for each stage, the list of the sums of their gradients.
        input_gradients: for each micro-batch, the list of gradients of its differentiable inputs; empty where not asked for.
    """

    metrics: dict
    losses: list
    weights: list
    weight_gradients: list
    input_gradients: list


def add_up(parts):
    """Adds in one order always; tf.add_n takes the order in which it can save memory."""
    return tf.nest.map_structure(lambda *values: tf.reduce_sum(tf.stack(values), 0), *parts) if parts else {}
