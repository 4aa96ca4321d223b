"""A TPU system that does not exist: real strategies trace over it, and virtual CPU devices hold their variables."""

import contextlib
from unittest import mock

import numpy as np
import tensorflow as tf
from tensorflow.python.client import session
from tensorflow.python.tpu import tpu_system_metadata

from lingpipe.devices import device_kinds
from lingpipe.placements import logical_cores, spmd_cores, tpu_replicas

HOST = '/job:localhost/replica:0/task:0/device:CPU:0'


def topology(mesh=(2, 2, 1, 2)):
    """Return the topology of one host with `mesh` = (x, y, z, cores of a chip)."""
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


def cores_of(topology, num_stages, kind=logical_cores.LogicalCores, names=None, assignment=OnVirtualDevices):
    """Return `LogicalCores`, or the like, over a topology."""
    assign = tpu_replicas.assign_cores
    with mock.patch.object(tpu_replicas, 'assign_cores', lambda topology, num_stages: assignment(
            topology, assign(topology, num_stages).core_assignment)):
        return kind(Resolver(topology, names), topology, num_stages)


def make_cores(num_stages, mesh=(2, 2, 1, 2)):
    """Return `LogicalCores` over the system."""
    return cores_of(topology(mesh), num_stages)


def make_spmd_cores(num_stages, mesh=(2, 2, 1, 2)):
    """Return `SpmdCores` over the system."""
    return cores_of(topology(mesh), num_stages, spmd_cores.SpmdCores)


def core_program(p, cores, spec):
    """Return the `CoreTrainProgram` of a task that is built on `LogicalCores` for an input."""
    with cores.active():
        task = p.Instantiate()
        task.body.build_from_specs(tf.TensorSpec(spec.shape, spec.dtype))
    return logical_cores.CoreTrainProgram(task, p.train, cores)


@contextlib.contextmanager
def pretend_tpus(devices):
    """Let TPUs' rule of compiling everything hold for some CPU devices inside the `with` block."""
    must_compile, pretended = device_kinds.must_compile, set(map(_full_name, devices))
    with mock.patch.object(device_kinds, 'must_compile',
                           lambda device: must_compile(device) or _full_name(device) in pretended):
        yield


def _full_name(device):
    here = tf.DeviceSpec(job='localhost', replica=0, task=0)
    return here.make_merged_spec(tf.DeviceSpec.from_string(device)).to_string()
