"""A tensor that a program for all cores of a replica changes, kept by these cores slice by slice."""

import tensorflow as tf


class SlicedVariable:
    """A tensor of which every core of a replica holds a slice, or the whole, in a variable of its own.

    ::

        value [4, 3]      replica 0    core 0: [0:2]    core 1: [2:4]        dimension 0, two cores
                          replica 1    core 0: [0:2]    core 1: [2:4]

    A `TPUReplicatedVariable`, as a strategy would make, keeps the whole on every core.

    Args:
        cores: `SpmdCores`.
        parts: list of K tensors, the slices of the initial value.
        dimension: dimension along which they are slices; None: each is the whole.
    """

    def __init__(self, cores, parts, dimension):
        self._cores, self._dimension = cores, dimension
        self.slices = [[_variable_on(device, part) for device, part in zip(row, parts)] for row in cores.devices]

    def assign(self, parts):
        """Gives the cores of every replica new slices, a list of K tensors."""
        for row in self.slices:
            for variable, part in zip(row, parts):
                with tf.device(variable.device):
                    variable.assign(part)

    def parts(self):
        """Returns the list of the K slices that the first replica holds; all replicas hold the same."""
        return [_read(variable) for variable in self.slices[0]]

    def joined(self):
        """Returns the handle by which the program that is laid out next can `SpmdCores.read` and `assign` it as one tensor."""
        return self._cores.join(self.slices, self._dimension)

    @property
    def dtype(self):
        return self.slices[0][0].dtype


def _variable_on(device, value):
    with tf.device(device):
        return tf.Variable(value, trainable=False)


def _read(variable):
    with tf.device(variable.device):
        return variable.read_value()
