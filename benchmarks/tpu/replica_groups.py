"""Data-parallel ResNet-50 on whole TPU slices: which replicas add up what, and what a core needs, by the TPU compiler.

    pip install -e '.[tpu-compile]'
    python -m benchmarks.tpu.replica_groups --topologies=v5e:4x4,v3:4x4,v3:32x32

No TPU is needed. A replica is one core; all run one program: the forward and backward pass with the gradients and the
moving statistics, without the update. Statistics of batch norm are added up within groups of replicas, gradients over
all. The number of rows is that of one core, whatever the topology.
"""

import collections
import re

import numpy as np
import tensorflow as tf
from absl import app, flags
from tensorflow.compiler.tf2xla.ops import gen_xla_ops

from benchmarks.support import common
from lingpipe import model_registry
from lingpipe.devices import collectives as replica_sums
from lingpipe.tools.tpu_compile import stable_hlo, topologies, tpu_compiler
from lingpipe.training import train_program

_MODEL = flags.DEFINE_string(
    'model', 'params.resnet50.ResNet50MLPerf32768Cores2048', "Model, as for run.py's --model, with one partition.")
_TOPOLOGIES = flags.DEFINE_list('topologies', ['v5e:4x4', 'v3:4x4', 'v3:32x32'], 'TPU slices to fill with replicas.')
_FAST = flags.DEFINE_bool('fast', True, 'Whether the compiler optimises less, in seconds instead of minutes.')
_GROUPS = re.compile(r' all-reduce(?:-start)?\(.*replica_groups=\{(\{.*?\})?\}')
_MIB = 2**20


class Replicas(replica_sums.Group):
    """The replicas of one program in XLA's own operations, which need no strategy and no TPU.

    Args:
        count: R.
    """

    def __init__(self, count):
        self.count = count

    def sum(self, device, tensors):
        return tf.nest.map_structure(lambda tensor: self._sum(tensor, self.count), tensors)

    def sum_inside_program(self, tensor, group_size):
        @tf.custom_gradient
        def total(tensor):
            return self._sum(tensor, group_size), lambda upstream: self._sum(upstream, group_size)

        return total(tensor)

    def index_on(self, device):
        return tf.cast(gen_xla_ops.xla_replica_id(), tf.int64)

    def _sum(self, tensor, group_size):
        groups = np.arange(self.count, dtype=np.int32).reshape(-1, group_size)
        return gen_xla_ops.xla_all_reduce(tensor, groups, 'Add', 'CrossReplica')


def program(model, num_replicas):
    """Returns the program of a replica, as StableHLO, and the number of its rows.

    Args:
        model: name of a model of images, as for run.py.
        num_replicas: R; the rows of a replica are those that the model's own number of replicas gives it.
    """
    params = model_registry.GetParams(model, 'Train')
    rows, size = params.input.batch_size // params.task.body.num_replicas, params.input.image_size
    params.task.body.Set(num_replicas=1, devices=['CPU:0'], jit_compile=True)
    images = tf.TensorSpec([rows, size, size, 3])
    replicas = Replicas(num_replicas)
    with replicas.active():
        task = params.task.Instantiate()
        task.body.build_from_specs(images)
        train = train_program.TrainProgram(task, params.train)

    def step(images, labels, weights, number):
        with replicas.active():
            out, metrics = train._value_and_grad((images, labels, weights), number)
            return [metrics['loss'], *out.gradients, *[value for _, value in out.state_updates]]

    specs = tf.TensorSpec([rows], tf.int32), tf.TensorSpec([rows]), tf.TensorSpec([], tf.int64)
    return stable_hlo.lower(step, images, *specs), rows


def sums_by_group(hlo, num_replicas):
    """Counts all-reduces by their groups.

    Args:
        hlo: text of the compiled program.
        num_replicas: R; groups that are not listed are one of all R.

    Returns:
        Dictionary from (number of groups, replicas in each) to the number of all-reduces over such groups.
    """
    found = collections.Counter()
    for text in _GROUPS.findall(hlo):
        groups = text.strip('{}').split('},{')
        found[len(groups), len(groups[0].split(',')) if text else num_replicas] += 1
    return found


def _row(compiler, topology):
    num_replicas = topologies.num_devices(topology)
    text, rows = program(_MODEL.value, num_replicas)
    compiled = compiler.compile(text, topology, num_replicas=num_replicas, fast=_FAST.value)
    sums = ', '.join(f'{count} over {groups} x {size}' for (groups, size), count in sorted(
        sums_by_group(compiled.hlo, num_replicas).items(), key=lambda item: item[0][1]))
    return [topology, num_replicas, rows, sums, f'{compiled.arguments / _MIB:.0f}',
            f'{compiled.temporaries / _MIB:.0f}', f'{compiled.seconds:.0f}']


def main(unused_argv):
    with tpu_compiler.TpuCompiler(timeout_seconds=3600) as compiler:
        rows = [_row(compiler, topology) for topology in _TOPOLOGIES.value]
    common.report(common.markdown_table(
        ['topology', 'replicas', 'rows of each', 'all-reduces (over groups x replicas)', 'MiB of weights and batch',
         'MiB of temporaries', 'seconds to compile'], rows), f'Model: {_MODEL.value}.')


if __name__ == '__main__':
    app.run(main)
