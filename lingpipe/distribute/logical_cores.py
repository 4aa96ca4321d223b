"""Replicas of K cores of a TPU system each: where stages, their variables and their sums over replicas live."""

import contextlib

import tensorflow as tf

from lingpipe.distribute import device_kinds, tpu_replicas

_active = []


class LogicalCores(tpu_replicas.TpuReplicas):
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

    @contextlib.contextmanager
    def active(self):
        """Makes these the cores on which `variable_placement.creating_on` creates variables."""
        _active.append(self)
        try:
            yield self
        finally:
            _active.remove(self)

    def run(self, function, arguments):
        """Lays out a program that every replica runs, as `TpuReplicas.run`; what names no device is on the last core."""
        def on_cores(*arguments):
            with tf.device(self.devices[-1]):
                return function(*arguments)

        return super().run(on_cores, arguments)


def device_name(index):
    """Returns the name by which `tf.device` knows a core inside a program."""
    return f'/device:{device_kinds.LOGICAL_CORE}:{index}'


@contextlib.contextmanager
def creating_on(device):
    """Creates variables on a core of every replica; they remember it as `logical_core`.

    Each replica changes its own copy: all compute the same from gradients that are sums over replicas.

    Args:
        device: name of the core.
    """
    if not _active:
        raise ValueError(f'A variable on {device} belongs to replicas that are not known. Build the pipeline inside '
                         '`with cores.active()`, where cores is a LogicalCores.')
    strategy, index = _active[-1].strategy, tf.DeviceSpec.from_string(device).device_index

    def create(next_creator, **arguments):
        variable = next_creator(**{**arguments, 'aggregation': tf.VariableAggregation.NONE})
        variable.logical_core = device_name(index)
        return variable

    with tf.device(None), strategy.scope(), strategy.extended.experimental_logical_device(index), \
            tf.variable_creator_scope(create):
        yield


def sum_over_replicas(device, tensors):
    """Adds tensors up over all replicas, on their core; anywhere else it returns them as they are.

    Args:
        device: name of the device that the tensors are on.
        tensors: nest of tensors.
    """
    if not device_kinds.is_logical_core(device) or not tf.nest.flatten(tensors):
        return tensors
    with tf.device(device):
        return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, tensors)


def num_replicas(device):
    """Returns over how many replicas `sum_over_replicas` adds up on a device."""
    return tf.distribute.get_strategy().num_replicas_in_sync if device_kinds.is_logical_core(device) else 1


def replica_index(device):
    """Returns the number of the replica that runs, an int64 scalar; 0 anywhere but on logical cores."""
    if not device_kinds.is_logical_core(device):
        return 0
    with tf.device(device):
        return tf.cast(tf.distribute.get_replica_context().replica_id_in_sync_group, tf.int64)
