"""The state of an SPMD step in two places: the host's Keras variables, and the slices that the cores train."""

import tensorflow as tf

from lingpipe.spmd import spmd_step


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
        self.slices = [[_variable_on(device, part) for device, part in zip(row, parts)] for row in cores.grid]

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


class SpmdVariables:
    """What the cores train, and its way from and to the host.

    ::

        host       Keras variables, one a layer:    what is built, checkpointed, evaluated and exported
                     |  ^
            to_cores |  | to_host
                     v  |
        cores      slices, the same on every replica:    what a step reads and assigns

    Args:
        variables: `SpmdState` of Keras variables, as `SpmdStep.variables` returns it.
        outer_dimension: function from the shape of an outer variable to the dimension along which cores hold slices, or None.
        cores: `SpmdCores`.
    """

    def __init__(self, variables, outer_dimension, cores):
        self._cores = cores

        def of_row(row):
            return _Row(row, cores)

        def of_one(variable):
            return _Whole(variable, outer_dimension(variable.shape), cores)

        self._state = spmd_step.SpmdState(
            list(map(of_row, variables.stages)), list(map(of_one, variables.outer)),
            [list(map(of_row, rows)) for rows in variables.stage_slots],
            [list(map(of_one, slots)) for slots in variables.outer_slots], [])

    def to_cores(self):
        """Gives the cores of every replica what the host has."""
        for entry in self.entries:
            entry.to_cores()

    def to_host(self):
        """Gives the host what the cores have."""
        for entry in self.entries:
            entry.to_host()

    @property
    def entries(self):
        """List of all tensors of the state, each with `sliced`, its `SlicedVariable`."""
        return tf.nest.flatten(self._state)

    def joined(self):
        """Returns the handles by which the program that is laid out next can `read` and `assign` the state."""
        return [entry.sliced.joined() for entry in self.entries]

    def read(self, handles, step):
        """Returns the `SpmdState` of tensors inside of a program.

        Args:
            handles: what `joined` returned before the program began.
            step: int64 scalar, the number of steps done.
        """
        values = [self._cores.read(handle, entry.sliced.dtype) for handle, entry in zip(handles, self.entries)]
        return tf.nest.pack_sequence_as(self._state, values)._replace(step=step)

    def assign(self, handles, state):
        """Assigns a new `SpmdState` of tensors inside of a program."""
        for handle, value in zip(handles, tf.nest.flatten(state._replace(step=[]))):
            self._cores.assign(handle, value)


class _Entry:
    """A tensor of the state on the host and on the cores."""

    def __init__(self, cores, dimension):
        self._num_cores = cores.num_stages
        self.sliced = SlicedVariable(cores, self._host_parts(), dimension)

    def to_cores(self):
        self.sliced.assign(self._host_parts())

    def to_host(self):
        parts = self.sliced.parts()
        with tf.device('CPU:0'):
            self._assign(parts)

    def _host_parts(self):
        with tf.device('CPU:0'):
            return self._parts()


class _Row(_Entry):
    """The variables of the K stages that are one tensor `[K, ...]` to the program."""

    def __init__(self, row, cores):
        self._variables = row
        super().__init__(cores, 0)

    def _parts(self):
        return [variable.value.read_value()[tf.newaxis] for variable in self._variables]

    def _assign(self, parts):
        for variable, part in zip(self._variables, parts):
            variable.assign(part[0])


class _Whole(_Entry):
    """A variable outside of the stages."""

    def __init__(self, variable, dimension, cores):
        self._variable, self._dimension = variable, dimension
        super().__init__(cores, dimension)

    def _parts(self):
        value = self._variable.value.read_value()
        return [value] * self._num_cores if self._dimension is None else tf.split(value, self._num_cores, self._dimension)

    def _assign(self, parts):
        self._variable.assign(parts[0] if self._dimension is None else tf.concat(parts, self._dimension))


def _variable_on(device, value):
    with tf.device(device):
        return tf.Variable(value, trainable=False)


def _read(variable):
    with tf.device(variable.device):
        return variable.read_value()
