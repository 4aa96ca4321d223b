"""Runs run.py as a host of a TPU slice whose TPUs are mocked: each has one core, which stands for a CPU device of its
server.

Everything but the step is real: processes, servers, connections, the strategy, and the input on every host. The step is
that of one device, on host 0, of the rows that the hosts have made.
"""

import pathlib
import runpy
import sys

ROOT = pathlib.Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(pathlib.Path(__file__).parent)]

import numpy as np
import tensorflow as tf

from lingpipe.placements import tpu_system
from lingpipe.training import experiment, train_program
from tests import virtual_tpu

NUM_HOSTS = 2
TOPOLOGY = tf.tpu.experimental.Topology(
    mesh_shape=[NUM_HOSTS, 1, 1, 1], device_coordinates=np.array([[[x, 0, 0, 0]] for x in range(NUM_HOSTS)], np.int32))
CORES = [f'/job:worker/replica:0/task:{task}/device:TPU:0' for task in range(NUM_HOSTS)]


class Assignment(tf.tpu.experimental.DeviceAssignment):
    """Core 0 of a host is CPU 0 of its server."""

    def tpu_device(self, replica=0, logical_core=0, job=None):
        return super().tpu_device(replica, logical_core, job).replace('TPU', 'CPU')


class Program(train_program.TrainProgram):
    """One device trains on what all hosts have read."""

    def __init__(self, task, train_params):
        self._cores = virtual_tpu.cores_of(TOPOLOGY, 1, names=CORES, assignment=Assignment)
        super().__init__(task, train_params)

    def iterate(self, batches):
        images, *_ = next(self._cores.distribute(batches))
        for rows in self._cores.strategy.experimental_local_results(images):
            print(f'{len(rows)} rows from {rows.device}', flush=True)
        return self._cores.distribute(batches)

    def _step(self, batch):
        def whole(rows):
            return tf.concat(self._cores.strategy.experimental_local_results(rows), 0)

        return super()._step(tf.nest.map_structure(whole, batch))


class Slice(experiment.Placement):
    def program(self, task, train_params, batch_spec):
        return Program(task, train_params)


tf.tpu.experimental.initialize_tpu_system = lambda resolver: TOPOLOGY
tpu_system.TpuSystem.devices = property(lambda system: CORES)
tpu_system.place = lambda body_params, system: Slice(['CPU:0'] * body_params.num_partitions)
runpy.run_path(str(ROOT / 'run.py'), run_name='__main__')
