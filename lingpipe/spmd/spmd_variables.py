"""Variables that an `SpmdStep` trains on TPU cores, and their transfer from and to the host."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from lingpipe.devices import variable_placement
from lingpipe.spmd.spmd_step import SpmdState

_HOST = 'CPU:0'


class SlicedVariable:
    """Copies of a host variable on the cores. Each core has a slice, or the whole value.

    ::

        value [4, 3]      replica 0    core 0: [0:2]    core 1: [2:4]        dimension 0, two cores
                          replica 1    core 0: [0:2]    core 1: [2:4]

    Args:
        dimension: dimension that is cut into slices; None: each core has the whole value.
    """

    def __init__(self, variable: Any, dimension: int | None, cores: Any) -> None:
        self._variable, self._dimension, self._cores = variable, dimension, cores
        parts = self._host_parts()
        # TensorFlow's `TPUReplicatedVariable` would keep the whole tensor on every core.
        self.slices = [[_variable_on(device, part) for device, part in zip(row, parts)] for row in cores.grid]

    def to_cores(self) -> None:
        """Copy the value on the host to the cores of every replica."""
        parts = self._host_parts()
        for row in self.slices:
            for variable, part in zip(row, parts):
                with tf.device(variable.device):
                    variable.assign(part)

    def to_host(self) -> None:
        """Copy the slices of the first replica to the host."""
        parts = [_read(variable) for variable in self.slices[0]]  # all replicas hold equal slices
        with tf.device(_HOST):
            self._assign_host(parts)

    def joined(self) -> Any:
        """Return a handle to the whole variable, for `SpmdCores.read` and `SpmdCores.assign`."""
        return self._cores.join(self.slices, self._dimension)

    @property
    def dtype(self) -> tf.DType:
        return self.slices[0][0].dtype

    def _host_parts(self):
        with tf.device(_HOST):
            value = variable_placement.native(self._variable).read_value()
            if self._dimension is None:
                return [value] * self._cores.num_stages
            return tf.split(value, self._cores.num_stages, self._dimension)

    def _assign_host(self, parts):
        self._variable.assign(parts[0] if self._dimension is None else tf.concat(parts, self._dimension))


class StageVariables(SlicedVariable):
    """Matching variables of all stages, such as the first kernels. A program uses them as one tensor `[K, V, ...]`."""

    def _host_parts(self):
        with tf.device(_HOST):
            return [tf.stack([variable_placement.native(variable).read_value() for variable in row])[tf.newaxis]
                    for row in self._variable]

    def _assign_host(self, parts):
        for row, part in zip(self._variable, parts):
            for variable, value in zip(row, tf.unstack(part[0])):
                variable.assign(value)


class SpmdVariables:
    """The variables that the cores train, and their transfer from and to the host.

    ::

        host       Keras variables of each layer:        for checkpoints, evaluation and export
                     |  ^
            to_cores |  | to_host
                     v  |
        cores      slices, the same on every replica:    for training steps

    Args:
        outer_dimension: function `(shape) -> dimension to shard or None`, for variables outside the stages.
    """

    def __init__(self, variables: SpmdState, outer_dimension: Callable[[Any], int | None], cores: Any) -> None:
        self._cores = cores
        self._state = variables.map(
            lambda row: StageVariables(row, 0, cores),
            lambda variable: SlicedVariable(variable, outer_dimension(variable.shape), cores))._replace(step=[])
        self.entries: list[SlicedVariable] = tf.nest.flatten(self._state)

    def to_cores(self) -> None:
        """Copy the values of the host to the cores of every replica."""
        for entry in self.entries:
            entry.to_cores()

    def to_host(self) -> None:
        """Copy the values of the cores to the host."""
        for entry in self.entries:
            entry.to_host()

    def joined(self) -> list:
        """Return one handle for each of `entries`, for `read` and `assign`. Call this method outside the program."""
        return [entry.joined() for entry in self.entries]

    def read(self, handles: list, step: tf.Tensor) -> SpmdState:
        """Return the state as tensors, inside a program. Get `handles` from `joined` before the program begins."""
        values = [self._cores.read(handle, entry.dtype) for handle, entry in zip(handles, self.entries)]
        return tf.nest.pack_sequence_as(self._state, values)._replace(step=step)

    def assign(self, handles: list, state: SpmdState) -> None:
        """Assign a new `SpmdState` of tensors. Call this method inside a program."""
        for handle, value in zip(handles, tf.nest.flatten(state._replace(step=[]))):
            self._cores.assign(handle, value)


def _variable_on(device, value):
    with tf.device(device):
        return tf.Variable(value, trainable=False)


def _read(variable):
    with tf.device(variable.device):
        return variable.read_value()
