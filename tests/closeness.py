"""Equality of tensors up to rounding."""

import numpy as np
import tensorflow as tf


def assert_close(actual, expected, tolerance=1e-5):
    """Assert that nests of tensors are equal up to `tolerance` of the largest value of each tensor."""
    tf.nest.assert_same_structure(actual, expected)
    for one, other in zip(tf.nest.flatten(actual), tf.nest.flatten(expected)):
        one, other = _as_array(one), _as_array(other)
        np.testing.assert_allclose(one, other, rtol=0, atol=tolerance * np.abs(other).max(initial=1e-2))


def assert_gradients_close(actual, expected, tolerance=1e-5):
    """Assert that gradients of one loss are equal up to `tolerance` of the largest value of them all.

    A gradient that is 0 in truth, such as that of a bias before a batch norm, is a sum of terms that cancel. What is
    left of them depends on the processor, and is small beside the terms, not beside itself.
    """
    tf.nest.assert_same_structure(actual, expected)
    largest = max((np.abs(_as_array(gradient)).max(initial=0) for gradient in tf.nest.flatten(expected)), default=0)
    for one, other in zip(tf.nest.flatten(actual), tf.nest.flatten(expected)):
        np.testing.assert_allclose(_as_array(one), _as_array(other), rtol=0, atol=tolerance * max(largest, 1e-2))


def _as_array(tensor):
    """Gradients of embeddings are tf.IndexedSlices, in the pipeline as in Keras."""
    return np.asarray(tf.convert_to_tensor(tensor) if isinstance(tensor, tf.IndexedSlices) else tensor)
