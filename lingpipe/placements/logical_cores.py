"""Replicas of K cores of a TPU system each: where stages, their variables and their sums over replicas live."""

import contextlib

import tensorflow as tf

from lingpipe.devices import collectives, device_kinds
from lingpipe.placements import tpu_replicas


class LogicalCores(tpu_replicas.TpuReplicas, collectives.Group):
    """Replicas of which every one is a pipeline, one core a stage.

    ::

        replica 0    core 0 ─> core 1 ─> core 2         one program holds all of a replica's stages; the compiler
                       :         :         :            cuts it along the cores that operations and variables
        replica 1    core 0 ─> core 1 ─> core 2         carry, and sums run over the replicas, core by core

    Args:
        resolver: `tf.distribute.cluster_resolver.TPUClusterResolver` of an initialised system.
        topology: its `tf.tpu.experimental.Topology`.
        num_stages: K.
        make_assignment: function as `core_assignment.assign_cores` takes it.
    """

    def __init__(self, resolver, topology, num_stages, make_assignment=tf.tpu.experimental.DeviceAssignment.build):
        super().__init__(resolver, topology, num_stages, make_assignment, is_spmd=False)
        self.devices = [device_name(index) for index in range(num_stages)]

    @property
    def count(self):
        return self.num_replicas

    def run(self, function, arguments):
        """Lays out a program that every replica runs, as `TpuReplicas.run`; what names no device is on the last core."""
        def on_cores(*arguments):
            with self.active(), tf.device(self.devices[-1]):
                return function(*arguments)

        return super().run(on_cores, arguments)

    def sum(self, device, tensors):
        """Adds tensors up over all replicas, on their core; anywhere else it returns them as they are."""
        if not device_kinds.is_logical_core(device) or not tf.nest.flatten(tensors):
            return tensors
        with tf.device(device):
            return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, tensors)

    def index_on(self, device):
        """Returns the number of the replica that runs; 0 anywhere but on its cores."""
        if not device_kinds.is_logical_core(device):
            return 0
        with tf.device(device):
            return tf.cast(tf.distribute.get_replica_context().replica_id_in_sync_group, tf.int64)

    @contextlib.contextmanager
    def creating_on(self, device):
        """Creates variables on a core of every replica; they remember it as `logical_core`.

        Each replica changes its own copy: all compute the same from gradients that are sums over replicas.

        Args:
            device: name of the core.
        """
        index = tf.DeviceSpec.from_string(device).device_index

        def create(next_creator, **arguments):
            variable = next_creator(**{**arguments, 'aggregation': tf.VariableAggregation.NONE})
            variable.logical_core = device_name(index)
            return variable

        with tf.device(None), self.strategy.scope(), self.strategy.extended.experimental_logical_device(index), \
                tf.variable_creator_scope(create):
            yield


def device_name(index):
    """Returns the name by which `tf.device` knows a core inside a program."""
    return f'/device:{device_kinds.LOGICAL_CORE}:{index}'
