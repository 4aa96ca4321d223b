"""Replicas of K cores that all run the same program, and the tensors of which each holds a slice."""

import tensorflow as tf
from tensorflow.python.compiler.xla.experimental import xla_sharding

from lingpipe.placements import tpu_replicas


class SpmdCores(tpu_replicas.TpuReplicas):
    """Replicas of which every one is a pipeline in one program for all of its cores, which XLA partitions.

    ::

        replica 0    core 0    core 1    core 2         every core runs the same program on its slice of each tensor;
                       :         :         :            what one hands to the next the partitioner sees to, and sums
        replica 1    core 0    core 1    core 2         run over the replicas, slice by slice

    Args:
        resolver: `tf.distribute.cluster_resolver.TPUClusterResolver` of an initialised system.
        topology: its `tf.tpu.experimental.Topology`.
        num_stages: K.
        make_assignment: function as `core_assignment.assign_cores` takes it.
    """

    def __init__(self, resolver, topology, num_stages, make_assignment=tf.tpu.experimental.DeviceAssignment.build):
        super().__init__(resolver, topology, num_stages, make_assignment, is_spmd=True)
        cores = []
        for index in range(num_stages):
            with self.strategy.extended.experimental_logical_device(index):
                cores.append(self.strategy.extended.worker_devices)
        self.devices = [list(row) for row in zip(*cores)]

    @property
    def is_partitioned(self):
        """Whether a program is for more than one core."""
        return self.num_stages > 1

    def join(self, slices, dimension):
        """Makes one handle of the variables of all cores; call it outside of the program that uses the handle.

        The TPU's compiler makes of a read a read on every core, and of an assignment an assignment on every core.

        Args:
            slices: for each replica the list of K `tf.Variable`.
            dimension: dimension along which they are slices; None: each is the whole.

        Returns:
            What `read` and `assign` take inside of the program.
        """
        with tf.device(None):
            handles = [self._join_cores(row, dimension) for row in slices]
            return tf.raw_ops.TPUReplicatedInput(inputs=handles, is_mirrored_variable=True)

    def _join_cores(self, variables, dimension):
        handles, shape = [variable.handle for variable in variables], variables[0].shape
        if self.num_stages == 1:
            return handles[0]
        if dimension is None:
            return xla_sharding.replicate(tf.raw_ops.TPUPartitionedInputV2(inputs=handles, partition_dims=[]))
        cuts = [self.num_stages if axis == dimension else 1 for axis in range(shape.rank)]
        whole = [size * cut for size, cut in zip(shape, cuts)]
        joined = tf.raw_ops.TPUPartitionedInputV2(inputs=handles, partition_dims=cuts)
        return xla_sharding.split(joined, dimension, self.num_stages, input_shape=whole)

    def read(self, handle, dtype):
        """Returns the whole of what `join` joined, inside of a program."""
        return tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype)

    def assign(self, handle, value):
        """Gives every core its slice of a new value, inside of a program."""
        tf.raw_ops.AssignVariableOp(resource=handle, value=value)

    def sum_over_replicas(self, tensors):
        """Adds a nest of tensors up over all replicas, inside of a program."""
        return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, tensors)

    def replica_index(self):
        """Returns the number of the replica that runs a program, an int64 scalar."""
        return tf.cast(tf.distribute.get_replica_context().replica_id_in_sync_group, tf.int64)


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
