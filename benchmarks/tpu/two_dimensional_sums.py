"""Gradients of ResNet-50 summed over all cores of TPU slices: the rings of XLA's all-reduce, and what they send.

    pip install -e '.[tpu-compile]'
    python -m benchmarks.tpu.two_dimensional_sums --topologies=v5e:4x4,v3:4x4,v3:32x32

No TPU is needed, only the TPU compiler. The program takes all gradients of the model in float32, each in its own shape,
and returns their sums. The compiler notes its algorithm::

    StrategyND{colors:2 phases:2 cores:{64 32},{64 32} ... dim_used:{0 1},{1 0} ...}

Here two parts of the tensor (colors) are summed at the same time, in two phases. One part goes along y (dimension 0) in
rings of 64 cores, then along x (dimension 1) in rings of 32. The other goes along x first. A later phase sums what a
reduce-scatter in the earlier phases leaves. The compiler explains these names nowhere. On a slice of 4 x 8 chips of two
cores it notes {16 4},{8 8} and dim_sizes:8,4, which only this reading explains.

An all-reduce of B bytes in a ring of n cores sends 2 B (n - 1) / n over each link in 2 (n - 1) steps: Thakur,
Rabenseifner and Gropp, Optimization of Collective Communication Operations in MPICH, 2005, section 4. The bytes of
rings that share a link add up. They include both directions, but no padding of tiles. A slice without the links that
close its lines to rings sends up to twice as many. For comparison, a formula gives one ring through all cores.
"""

import math
import re
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from absl import app, flags
from tensorflow.compiler.tf2xla.ops import gen_xla_ops

from benchmarks.scaling import reduction_time
from benchmarks.support import common
from lingpipe import model_registry
from lingpipe.layers import base_layer
from lingpipe.tools import stable_hlo, tpu_compiler

_MODEL = flags.DEFINE_string(
    'model', 'params.resnet50.ResNet50MLPerf32768Cores2048', "Model of images, as for run.py's --model.")
_TOPOLOGIES = flags.DEFINE_list('topologies', ['v5e:4x4', 'v3:4x4', 'v3:32x32'], 'TPU slices to fill with replicas.')
_FAST = flags.DEFINE_bool('fast', False, 'Whether the compiler optimises less.')
_MIB = 2**20
_AXES = 'xy'
_AXES_OF_COMPILER = (1, 0)  # to which dimension 0 is y
_KINDS = 'all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter'
_INSTRUCTION = re.compile(rf'%(\S+) = (\(.*?\)|\S+) ((?:{_KINDS})(?:-start)?)\(')
_TENSOR = re.compile(r'[a-z]+(\d+)\[([\d,]*)\]')
_RINGS = re.compile(r'colors:\d+ phases:\d+ cores:(\{[{}\d ,]+\}) .*dim_used:(\{[{}\d ,]+\})')


class Ring(NamedTuple):
    """Rings along one axis, side by side, such that every core is in one.

    Attributes:
        axis: 0: x, 1: y.
        size: number of cores in each.
        num_bytes: bytes that each sums.
    """

    axis: int
    size: int
    num_bytes: float

    @property
    def steps(self):
        """Number of transfers that wait for each other."""
        return 2 * (self.size - 1)

    def link_bytes(self, coordinates):
        """Return the bytes over each link of the axis; the cores on its lines form one ring or several."""
        num_lines = len({place[1 - self.axis] for place in coordinates})
        return self.steps / self.size * self.num_bytes * len(coordinates) / num_lines / self.size


class Traffic(NamedTuple):
    """What all-reduces that run one after another send.

    Attributes:
        link_bytes: pair of the bytes over each link along x and along y.
        bytes_in_turn: bytes that wait for each other: those over the busier axis in each phase, added up.
        steps: number of transfers that wait for each other.
    """

    link_bytes: tuple
    bytes_in_turn: float
    steps: int


def gradient_shapes(model):
    """Return the list of the shapes of a model's gradients, with nothing allocated.

    Args:
        model: name of a model of images, as for run.py.
    """
    params = model_registry.GetParams(model, 'Train')
    size = params.input.image_size
    params.task.body.Set(num_replicas=1, devices=['CPU:0'])
    with base_layer.unallocated_variables():
        task = params.task.Instantiate()
        task.body.build_from_specs(tf.TensorSpec([params.task.body.num_micro_batches, size, size, 3]))
    return [list(variable.shape) for variable in task.body.trainable_variables]


def program(shapes, num_replicas):
    """Return the program, as StableHLO, that sums tensors by an all-reduce of each over all replicas.

    Args:
        shapes: list of shapes of float32 tensors.
        num_replicas: number of replicas.
    """
    everyone = np.arange(num_replicas, dtype=np.int32)[None]
    return stable_hlo.lower(
        lambda tensors: [gen_xla_ops.xla_all_reduce(tensor, everyone, 'Add', 'CrossReplica') for tensor in tensors],
        [tf.TensorSpec(shape) for shape in shapes])


def all_reduces(hlo, coordinates):
    """Read the all-reduces of a program, in their order.

    Args:
        hlo: text of the compiled program.
        coordinates: list of `(x, y, z, core of the chip)`, one per replica.

    Returns:
        For each a list of lists of `Ring`: parts of the tensor go at the same time, the rings of a part in turn.

    Raises:
        ValueError: the program sends in a way, or at a time, that the model does not count.
    """
    if len({place[2] for place in coordinates}) > 1:
        raise ValueError('The slice has chips along three axes, and the model counts two. Use v2, v3, v5e or v6e.')
    before, _, entry = hlo.partition('\nENTRY ')
    if hidden := _INSTRUCTION.search(before):
        raise ValueError(
            f'{hidden[1]} is a part of another operation, which may run several at the same time, and only operations '
            'in turn are counted. Change the program so that the compiler leaves it alone.')
    return [_parts(line, *instruction.groups()) for line in entry.splitlines()
            if (instruction := _INSTRUCTION.search(line))]


def _parts(line, name, shape, kind):
    rings = _RINGS.search(line)
    if kind != 'all-reduce' or not rings:
        raise ValueError(f'{name} is a {kind}{"" if rings else " without a note of its rings along x and y"}. Counted '
                         'are all-reduces with such a note: take a slice of 4 x 4 chips or more.')
    num_bytes = sum(int(bits) // 8 * math.prod(map(int, filter(None, sizes.split(','))))
                    for bits, sizes in _TENSOR.findall(shape))
    sizes, dimensions = ([list(map(int, part.split())) for part in text.strip('{}').split('},{')]
                         for text in rings.groups())
    return [_phases(*part, num_bytes / len(sizes)) for part in zip(dimensions, sizes)]


def _phases(dimensions, sizes, num_bytes):
    return [Ring(_AXES_OF_COMPILER[dimension], size, num_bytes / math.prod(sizes[:phase]))
            for phase, (dimension, size) in enumerate(zip(dimensions, sizes))]


def traffic(found, coordinates):
    """Count what all-reduces send, one after another.

    Args:
        found: what `all_reduces` returns.
        coordinates: list of `(x, y, z, core of the chip)`, one per replica.

    Returns:
        `Traffic`.
    """
    phases = [rings for parts in found for rings in zip(*parts)]
    by_axis = [[sum(ring.link_bytes(coordinates) for ring in rings if ring.axis == axis) for axis in range(len(_AXES))]
               for rings in phases]
    return Traffic(tuple(map(sum, zip(*by_axis))), sum(map(max, by_axis)),
                   sum(max(ring.steps for ring in rings) for rings in phases))


def _rings_text(parts):
    """Return the rings of an all-reduce in words, such as 'x 64, y 32; y 64, x 32': parts that go at once."""
    return '; '.join(', '.join(f'{_AXES[ring.axis]} {ring.size}' for ring in part) for part in parts)


def rows(compiler, topology, shapes):
    """Compile the program for a topology.

    Args:
        compiler: `TpuCompiler`.
        topology: such as 'v5e:4x4'.
        shapes: list of shapes of the gradients.

    Returns:
        List of two rows: the all-reduce, and one ring.
    """
    num_replicas = math.prod(tpu_compiler.mesh(topology))
    compiled = compiler.compile(program(shapes, num_replicas), topology, num_replicas=num_replicas, fast=_FAST.value)
    found = all_reduces(compiled.hlo, compiled.coordinates)
    sent = traffic(found, compiled.coordinates)
    num_bytes = 4 * sum(tf.TensorShape(shape).num_elements() for shape in shapes)
    ring = reduction_time.ring(num_bytes, num_replicas, link_bandwidth=1, hop_seconds=0)
    return [[topology, 'all-reduce', ' + '.join(map(_rings_text, found)),
             *(f'{each / 1e6:.1f}' for each in (*sent.link_bytes, sent.bytes_in_turn)), f'{sent.steps:,}',
             f'{compiled.temporaries / _MIB:.0f}'],
            [topology, 'one ring, by formula', '-', '-', '-', f'{ring.bytes_per_link / 1e6:.1f}', f'{ring.steps:,}',
             '-']]


def main(unused_argv):
    shapes = gradient_shapes(_MODEL.value)
    with tpu_compiler.TpuCompiler() as compiler:
        found = [row for topology in _TOPOLOGIES.value for row in rows(compiler, topology, shapes)]
    common.report(
        common.Table(['topology', 'sum', 'rings', 'MB per link, x', 'MB per link, y', 'sequential MB', 'steps',
                      'MiB of temporaries'], found),
        f'Gradients of {_MODEL.value}: {len(shapes)} tensors.')


if __name__ == '__main__':
    app.run(main)
