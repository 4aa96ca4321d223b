"""Batches, losses and layers that are small enough to compare with plain Keras in moments."""

import keras
import numpy as np
import tensorflow as tf

from lingpipe.layers.keras_params import KerasParams


def images_and_labels(num_rows=8):
    """Return images `[num_rows, 6, 6, 3]` and labels `[num_rows]` of five classes, the same each time."""
    random = np.random.default_rng(0)
    return random.normal(size=(num_rows, 6, 6, 3)).astype('float32'), random.integers(0, 5, num_rows)


def vectors(num_rows=8, width=5, target_width=3):
    """Return inputs `[num_rows, width]` and targets `[num_rows, target_width]`, the same each time."""
    random = np.random.default_rng(1)
    return random.normal(size=(num_rows, width)).astype('float32'), random.normal(
        size=(num_rows, target_width)).astype('float32')


def cross_entropy(labels, logits):
    """Return a loss for each image `[batch]`."""
    return keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)


def squared_error(y_true, outputs):
    """Return a loss for each vector `[batch]`."""
    return tf.reduce_mean(tf.square(outputs - y_true), -1)


def dense(units, **arguments):
    """Return the params of a dense layer."""
    return KerasParams(keras.layers.Dense, units=units, **arguments)


def convolutional_layers():
    """Return the params of a small classifier with batch norm, strides and a regularizer."""
    layers = keras.layers
    return [
        KerasParams(layers.Conv2D, filters=4, kernel_size=3, use_bias=False, name='convolution_0'),
        KerasParams(layers.BatchNormalization, momentum=0.9, name='norm_0'),
        KerasParams(layers.Activation, activation='tanh', name='activation_0'),
        KerasParams(
            layers.Conv2D, filters=5, kernel_size=3, strides=2, padding='same', use_bias=False, name='convolution_1'),
        KerasParams(layers.BatchNormalization, momentum=0.8, name='norm_1'),
        KerasParams(layers.Flatten, name='flatten'),
        KerasParams(
            layers.Dense, units=5, name='logits', kernel_regularizer=KerasParams(keras.regularizers.L2, l2=0.03))]
