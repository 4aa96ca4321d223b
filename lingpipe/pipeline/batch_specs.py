"""Shapes and types of a batch, from what a caller has of it."""

import keras
import tensorflow as tf


def of_tensors(batch):
    """Returns the nest of `tf.TensorSpec` of a nest of tensors or arrays; None stays None."""
    return tf.nest.map_structure(
        lambda tensor: None if tensor is None else tf.TensorSpec(tensor.shape, tensor.dtype), batch)


def of_shapes(shapes):
    """Returns specs of Keras's default float type for a shape, or for a nest of shapes.

    Args:
        shapes: tuple of integers and None, or a list or tuple of such.
    """
    if all(size is None or isinstance(size, int) for size in shapes):
        return tf.TensorSpec(shapes, keras.backend.floatx())
    return type(shapes)(of_shapes(shape) for shape in shapes)
