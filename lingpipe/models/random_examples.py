"""A few random examples, on which a loss or a metric is tested before training."""

import concurrent.futures
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

NUM_ROWS = 5


def specs_of_rows(nest: Any) -> Any:
    """Returns a nest of specs with `NUM_ROWS` rows; other unknown sizes become 3.

    Args:
        nest: nest of tensors or `tf.TensorSpec` `[batch, ...]`.
    """
    return tf.nest.map_structure(lambda spec: tf.TensorSpec(_shape(spec), spec.dtype), nest)


def make(y_true: Any, outputs: Any) -> list:
    """Returns two nests of random arrays: numbers between 0 and 1, and, for integers, classes of the outputs.

    Args:
        y_true: nest of tensors or `tf.TensorSpec` `[batch, ...]`.
        outputs: nest of tensors or `tf.TensorSpec` `[batch, ..., classes]`.
    """
    random = np.random.default_rng(0)
    num_classes = max(2, tf.nest.flatten(outputs)[0].shape[-1] or 2)

    def of(spec):
        if spec.dtype.is_floating:
            return random.uniform(0.05, 0.95, _shape(spec)).astype(spec.dtype.as_numpy_dtype)
        return random.integers(0, num_classes, _shape(spec)).astype(spec.dtype.as_numpy_dtype)

    return [tf.nest.map_structure(of, nest) for nest in (y_true, outputs)]


def weights(spec: tf.TensorSpec) -> np.ndarray:
    """Returns random weights between 1 and 2, because some metrics count in integers."""
    return np.random.default_rng(1).uniform(1.0, 2.0, _shape(spec)).astype(spec.dtype.as_numpy_dtype)


def tried(function: Callable, *arguments: Any) -> Any:
    """Calls a function eagerly on the host, even in the middle of a trace.

    It runs in a separate thread, which has no graph, device, distribution or Keras scope that would change variables.

    Args:
        function: the function.
        *arguments: its arguments.

    Returns:
        What it returns.
    """
    def on_host():
        with tf.device('CPU:0'):
            return function(*arguments)

    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        return thread.submit(on_host).result()


def are_close(one: np.ndarray, other: np.ndarray) -> bool:
    """Returns whether two arrays are equal but for rounding errors, those of the largest element included.

    A small number may be the difference of large ones, and then has their rounding errors.
    """
    largest = np.abs(other).max(initial=1.0)
    return one.shape == other.shape and np.allclose(one, other, rtol=1e-4, atol=1e-5 * largest)


def _shape(spec):
    return [NUM_ROWS, *[size or 3 for size in spec.shape[1:]]]
