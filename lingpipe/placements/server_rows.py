"""Large weights in rows over several parameter servers, and lookups of rows on the servers.

::

    weight [10, d]       chief: the whole weight, to build, checkpoint and evaluate it
               to_servers |  ^ to_chief
                          v  |
    ps 0: rows 0 to 4       ps 1: rows 5 to 9       each with its rows of the optimizer's slots

    a read of all rows        worker <── rows 0 to 4, rows 5 to 9
    a lookup of tokens        worker ──> the different tokens of its batch ──> ps 0, ps 1
                              worker <── only their rows
    gradients                 worker ──> those of each server's rows; after a lookup, only those of the tokens' rows

The optimizer's own code runs on the server of the rows, so weights are cut only with element-wise optimizers.
"""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from lingpipe.devices import device_kinds, variable_placement
from lingpipe.layers import base_layer, embeddings
from lingpipe.optimizers import pure_optimizer
from lingpipe.pipeline import gpipe_layer

_OPTIMIZERS = {
    keras.optimizers.SGD, keras.optimizers.Adam, keras.optimizers.AdamW, keras.optimizers.Adamax,
    keras.optimizers.RMSprop, keras.optimizers.Adagrad, keras.optimizers.Adadelta, keras.optimizers.Ftrl,
    keras.optimizers.Lion}


def can_cut(optimizer: keras.optimizers.Optimizer) -> bool:
    """Return whether an optimizer is known to be element-wise."""
    return type(optimizer) in _OPTIMIZERS


def num_parts(variable: keras.Variable, num_servers: int, least_bytes: int) -> int:
    """Return how many servers hold parts of a weight, each of `least_bytes` or more; 1 if the weight stays whole."""
    if not variable.trainable or variable.constraint is not None or not len(variable.shape):
        return 1
    num_bytes = tf.as_dtype(variable.dtype).size * int(np.prod(variable.shape))
    return max(1, min(num_servers, num_bytes // least_bytes, variable.shape[0]))


def table_of(body: gpipe_layer.GPipeLayer) -> keras.Variable | None:
    """Return the table in which the body's first layer looks up tokens; None if other layers read it too."""
    if body.model is not None:
        return None
    first = body.stack[0]
    if type(first) not in (embeddings.TokenEmbedding, keras.layers.Embedding) or len(first.weights) != 1:
        return None
    table, = first.weights
    readers = [layer for layer in body.stack if any(weight is table for weight in layer.weights)]
    return table if len(readers) == 1 and table.regularizer is None else None


def dense_rows(tokens: tf.Tensor, parts: Sequence[tuple[Any, int, int]], shape: Sequence[int]) -> tf.Tensor:
    """Look up the rows of some tokens on their servers, and return the table with zeros instead of all other rows.

    Args:
        tokens: integers of any shape, on the current device.
        parts: triples (variable, begin, end): a server's `tf.Variable` with the rows from `begin` to before `end`.
        shape: shape of the whole table.
    """
    wanted, _ = tf.unique(tf.cast(tf.reshape(tokens, [-1]), tf.int32))
    found = []
    for variable, begin, end in parts:
        own = tf.boolean_mask(wanted, (wanted >= begin) & (wanted < end)) - begin
        with tf.device(variable.device):
            rows = variable.sparse_read(own)
        found.append(tf.scatter_nd(own[:, tf.newaxis], rows, [end - begin, *shape[1:]]))
    return tf.concat(found, 0)


class CutWeight:
    """A trainable weight that is whole on the chief, and cut into rows on servers during training.

    Args:
        slots: the optimizer's Keras variables for it.
        devices: the names of the servers, one for each part.
        make_optimizer: function that returns an optimizer without slots.

    Attributes:
        parts: list of `tf.Variable`, the rows of each server.
    """

    def __init__(self, variable: keras.Variable, slots: list[keras.Variable], devices: list[str],
                 make_optimizer: Callable[[], keras.optimizers.Optimizer]) -> None:
        self.variable = variable
        bounds = np.linspace(0, variable.shape[0], len(devices) + 1).astype(int).tolist()
        self._bounds = list(zip(bounds, bounds[1:]))
        self.parts, *self._slots = ([self._part(each, *place) for place in zip(devices, self._bounds)]
                                    for each in (variable, *slots))
        self._cut = list(zip([variable, *slots], [self.parts, *self._slots]))
        optimizer = make_optimizer()
        with base_layer.unallocated_variables():
            self._stand_ins = [_stand_in(variable, part.shape) for part in self.parts]
            self._optimizer = pure_optimizer.PureOptimizer(optimizer, self._stand_ins)
        self._updates = [device_kinds.one_call(device, self._update_of(place)) for place, device in enumerate(devices)]

    def _part(self, variable, device, bounds):
        begin, end = bounds
        with tf.device(device):
            return tf.Variable(tf.zeros([end - begin, *variable.shape[1:]], variable.dtype), trainable=False)

    def to_servers(self) -> None:
        """Copy the weight and its slots to the servers."""
        for whole, parts in self._cut:
            value = whole.value.read_value()
            for part, (begin, end) in zip(parts, self._bounds):
                part.assign(value[begin:end])

    def to_chief(self) -> None:
        """Copy the trained rows back into the weight and its slots."""
        for whole, parts in self._cut:
            with tf.device(whole.value.device):
                whole.assign(_joined(parts))

    def read(self) -> tf.Tensor:
        """Return the whole weight, on the current device."""
        return _joined(self.parts)

    @property
    def places(self) -> list[tuple[tf.Variable, int, int]]:
        """List of triples (variable, begin, end): a server's variable with the rows from `begin` to before `end`."""
        return [(part, *bounds) for part, bounds in zip(self.parts, self._bounds)]

    def split(self, gradient: tf.Tensor) -> list:
        """Return the list of each server's part of a gradient: a tensor, `tf.IndexedSlices`, or None."""
        if gradient is None:
            return [None] * len(self.parts)
        if not isinstance(gradient, tf.IndexedSlices):
            return [gradient[begin:end] for begin, end in self._bounds]
        found = []
        for part, (begin, end) in zip(self.parts, self._bounds):
            is_own = (gradient.indices >= begin) & (gradient.indices < end)
            found.append(tf.IndexedSlices(
                tf.boolean_mask(gradient.values, is_own), tf.boolean_mask(gradient.indices, is_own) - begin,
                tf.constant(part.shape.as_list(), gradient.indices.dtype)))
        return found

    def update(self, gradients: list, step: tf.Tensor, learning_rate: tf.Tensor) -> None:
        """Build the optimizer's arithmetic on each server, for gradients from `split`; concurrent updates all count."""
        for part, update, gradient in zip(self.parts, self._updates, gradients):
            if gradient is not None:
                given = (gradient.values, gradient.indices) if isinstance(gradient, tf.IndexedSlices) else (gradient,)
                with tf.device(part.device):
                    update(given, step, learning_rate)

    def _update_of(self, place):
        part, slots, stand_in = self.parts[place], [each[place] for each in self._slots], self._stand_ins[place]

        def update(given, step, learning_rate):
            value, values = part.read_value(), [slot.read_value() for slot in slots]
            gradient = tf.math.unsorted_segment_sum(*given, part.shape[0]) if len(given) == 2 else given[0]
            new, news = self._optimizer.update(stand_in, value, gradient, values, step, learning_rate)
            part.assign_add(new - value)
            for slot, new_slot in zip(slots, news):
                slot.assign(new_slot)

        return update


def _joined(parts):
    rows = []
    for part in parts:
        with tf.device(part.device):
            rows.append(part.read_value())
    return tf.concat(rows, 0)


def _stand_in(variable, shape):
    """Return a Keras variable without a value, which represents some rows of another one in an optimizer."""
    made = keras.Variable(keras.initializers.Zeros(), shape=tuple(shape), dtype=variable.dtype, name=variable.name)
    made._path = variable.path
    return made


def move_to_chief(variable: keras.Variable, device: str) -> None:
    """Move a weight to a device of the chief; a worker's step still computes with the gradients on the worker's CPU."""
    variable_placement.move(variable, device)
    variable.value.works_on = 'CPU:0'
