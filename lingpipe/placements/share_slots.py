"""Where the shares of a sum wait on a server until all of them are there."""

import tensorflow as tf

from lingpipe.devices import variable_placement


class ShareSlots:
    """A place for each share of what is to be averaged, beside the variable that it is for.

    ::

        share 0 ─> [0]
        share 1 ─> [1]   beside the variable ─> mean by weight
        share 2 ─> [2]

    A share may come twice, from a worker that died and from the one that took its place: it is put into its place, not added, and
    the mean stays the same.

    Args:
        variables: list of Keras variables.
        count: number of shares.
    """

    def __init__(self, variables, count):
        self._variables = list(variables)
        self._slots = [_zeros(variable, count) for variable in self._variables]
        self._positions = {id(variable): position for position, variable in enumerate(self._variables)}

    def put(self, share, variable, value):
        """Lays out that a share arrives.

        Args:
            share: int32 scalar, its number.
            variable: one of the Keras variables.
            value: tensor of its shape.
        """
        slot = self._slots[self._positions[id(variable)]]
        with tf.device(slot.device):
            tf.raw_ops.ResourceScatterUpdate(resource=slot.handle, indices=share, updates=tf.cast(value, slot.dtype))

    def shares(self, variables):
        """Returns for each of some of the variables its shares, a tensor `[count, ...]` where it lives."""
        values = []
        for variable in variables:
            slot = self._slots[self._positions[id(variable)]]
            with tf.device(slot.device):
                values.append(slot.read_value())
        return values


def _zeros(variable, count):
    with variable_placement.creating_on(variable_placement.device_of(variable)):
        return tf.Variable(tf.zeros([count, *variable.shape], variable.dtype), trainable=False)
