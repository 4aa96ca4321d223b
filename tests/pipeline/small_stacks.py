"""Batches, losses and layers that are small enough to compare with plain Keras in moments."""

import keras
import numpy as np
import tensorflow as tf

from lingpipe.layers.keras_params import KerasParams


def images_and_labels(num_rows=8):
    """Returns images `[num_rows, 6, 6, 3]` and labels `[num_rows]` of five classes, the same each time."""
    random = np.random.default_rng(0)
    return random.normal(size=(num_rows, 6, 6, 3)).astype('float32'), random.integers(0, 5, num_rows)


def vectors(num_rows=8, width=5, target_width=3):
    """Returns inputs `[num_rows, width]` and targets `[num_rows, target_width]`, the same each time."""
    random = np.random.default_rng(1)
    return random.normal(size=(num_rows, width)).astype('float32'), random.normal(
        size=(num_rows, target_width)).astype('float32')


def cross_entropy(labels, logits):
    """Returns a loss for each image `[batch]`."""
    return keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)


def squared_error(y_true, outputs):
    """Returns a loss for each vector `[batch]`."""
    return tf.reduce_mean(tf.square(outputs - y_true), -1)


def dense(units, **arguments):
    """Returns the params of a dense layer."""
    return KerasParams(keras.layers.Dense, units=units, **arguments)
