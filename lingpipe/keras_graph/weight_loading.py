"""Loading weights into a model whose variables are on several devices, with little additional memory."""

import contextlib
import functools
import math
from collections.abc import Iterable, Iterator

import keras
import numpy as np
import tensorflow as tf

from lingpipe.devices import device_kinds

_PART_BYTES = 2**20


class AwaitedWeights:
    """Variables that start as zeros, because their values will be loaded.

    Random numbers would take several times the memory of a variable while they are drawn. Variables that are not
    loaded, such as weights of a new head, get their own initial values afterwards.
    """

    def __init__(self, variables: Iterable[keras.Variable]) -> None:
        self._initializers = [(variable, variable._initializer) for variable in variables]
        for variable, _ in self._initializers:
            variable._initializer = keras.initializers.Zeros()

    @contextlib.contextmanager
    def loading(self) -> Iterator[None]:
        """Assign variables part by part in the `with` block, and initialise all others at its end."""
        assigned: set[int] = set()
        for variable, _ in self._initializers:
            variable.assign = functools.partial(_assign, assigned, variable)
        try:
            yield
        finally:
            for variable, _ in self._initializers:
                del variable.assign
        for variable, initializer in self._initializers:
            if id(variable) not in assigned:
                with tf.device(variable.value.device):
                    variable.assign(initializer(variable.shape, dtype=variable.dtype))


def _assign(assigned, variable, value):
    """Assign about one MiB of rows at a time, because each part is copied on its way to another device or host."""
    value = value if hasattr(value, 'shape') else np.asarray(value)
    if tuple(value.shape) != tuple(variable.shape):
        raise ValueError(f'{variable.path} has shape {tuple(variable.shape)}, but the weights to load have '
                         f'{tuple(value.shape)}. Load weights of the same model.')
    assigned.add(id(variable))
    if _num_bytes(variable) <= _PART_BYTES or device_kinds.must_compile(variable.value.device):
        variable.value.assign(tf.cast(np.asarray(value), variable.dtype))
        return
    step = max(1, _PART_BYTES * variable.shape[0] // _num_bytes(variable))
    for start in range(0, variable.shape[0], step):
        part = tf.cast(np.asarray(value[start:start + step]), variable.dtype)
        _assign_rows(variable.value, start, part)


def _assign_rows(variable, start, rows):
    """Assign rows in place; a slice of the variable would first read, and so copy, all of it."""
    with tf.device(variable.device):
        tf.raw_ops.ResourceStridedSliceAssign(
            ref=variable.handle, begin=[start], end=[start + rows.shape[0]], strides=[1], value=rows)
        variable.sparse_read([start]).numpy()  # waits; otherwise another host would get more than it can take


def _num_bytes(variable):
    return tf.as_dtype(variable.dtype).size * math.prod(variable.shape)
