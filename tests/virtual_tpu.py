"""A TPU system that does not exist: real strategies trace over it, and virtual CPU devices hold their variables."""

import numpy as np
import tensorflow as tf
from tensorflow.python.client import session
from tensorflow.python.tpu import tpu_system_metadata

from lingpipe.placements import logical_cores, spmd_cores

HOST = '/job:localhost/replica:0/task:0/device:CPU:0'


def topology(mesh=(2, 2, 1, 2)):
    """Returns the topology of one host with `mesh` = (x, y, z, cores of a chip)."""
    x, y, z, cores = map(range, mesh)
    coordinates = [[i, j, k, core] for j in y for i in x for k in z for core in cores]
    return tf.tpu.experimental.Topology(mesh_shape=list(mesh), device_coordinates=np.array([coordinates], np.int32))


class Resolver:
    """What a `TPUStrategy` asks of a `TPUClusterResolver`."""

    tpu_hardware_feature = None

    def __init__(self, topology, cores=None):
        count = topology.num_tpus_per_task
        self._topology = topology
        self._cores = cores or [HOST.replace('CPU:0', f'TPU:{index}') for index in range(count)]

    def cluster_spec(self):
        return None

    def get_tpu_system_metadata(self):
        hosts = sorted({name.rpartition('/')[0] for name in self._cores})
        names = [*(f'{host}/device:CPU:0' for host in hosts), *self._cores]
        devices = tuple(session._DeviceAttributes(name, name.split(':')[-2], 0, 0) for name in names)
        return tpu_system_metadata.TPUSystemMetadata(
            num_cores=len(self._cores), num_hosts=len(hosts), num_of_cores_per_host=len(self._cores) // len(hosts),
            topology=self._topology, devices=devices)


class OnVirtualDevices(tf.tpu.experimental.DeviceAssignment):
    """Core n is virtual CPU device n."""

    def tpu_device(self, replica=0, logical_core=0, job=None):
        return super().tpu_device(replica, logical_core, job).replace('TPU', 'CPU')

    def host_device(self, replica=0, logical_core=0, job=None):
        return HOST


def make_assignment(topology, **arguments):
    built = tf.tpu.experimental.DeviceAssignment.build(topology, **arguments)
    return OnVirtualDevices(topology, built.core_assignment)


def make_cores(num_stages, mesh=(2, 2, 1, 2)):
    """Returns `LogicalCores` over the system."""
    mocked_topology = topology(mesh)
    return logical_cores.LogicalCores(Resolver(mocked_topology), mocked_topology, num_stages, make_assignment)


def make_spmd_cores(num_stages, mesh=(2, 2, 1, 2)):
    """Returns `SpmdCores` over the system."""
    mocked_topology = topology(mesh)
    return spmd_cores.SpmdCores(Resolver(mocked_topology), mocked_topology, num_stages, make_assignment)
