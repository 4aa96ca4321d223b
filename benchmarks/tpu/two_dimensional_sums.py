"""Gradients of ResNet-50 summed over all cores of TPU slices: by XLA's all-reduce, and by hand in two dimensions.

    pip install -e '.[tpu-compile]'
    python -m benchmarks.tpu.two_dimensional_sums --topologies=v5e:4x4,v3:4x4,v3:32x32

No TPU is needed: the TPU's own compiler compiles the programs, and the collectives are read off what it makes of them.
`link_traffic.py` has the model by which bytes and steps are counted. Each program takes all gradients of the model in
float32, each in its own shape, and returns their sums. For comparison there is one ring through all cores, by formula.
"""

import itertools

import tensorflow as tf
from absl import app, flags

from benchmarks.scaling import reduction_time
from benchmarks.support import common
from benchmarks.tpu import link_traffic, torus_sums
from lingpipe import model_registry
from lingpipe.layers import base_layer
from lingpipe.tools.tpu_compile import tpu_compiler

_MODEL = flags.DEFINE_string(
    'model', 'params.resnet50.ResNet50MLPerf32768Cores2048', "Model of images, as for run.py's --model.")
_TOPOLOGIES = flags.DEFINE_list('topologies', ['v5e:4x4', 'v3:4x4', 'v3:32x32'], 'TPU slices to fill with replicas.')
_FAST = flags.DEFINE_bool('fast', False, 'Whether the compiler optimises less.')
_MIB = 2**20


def gradient_shapes(model):
    """Returns the list of the shapes of a model's gradients, with nothing allocated.

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


def programs(shapes, coordinates):
    """Returns a dictionary from what is summed how to the program, as StableHLO.

    Args:
        shapes: list of shapes of float32 tensors.
        coordinates: list of `(x, y, z, core of the chip)`, one a replica.
    """
    return {'all-reduce': torus_sums.plain(shapes, coordinates),
            'by hand, x first': torus_sums.two_dimensional(shapes, coordinates, 1),
            'by hand, halves swapped': torus_sums.two_dimensional(shapes, coordinates, 2)}


def rings_text(collective):
    """Returns the rings of a collective in words, such as 'x 64, y 32; y 64, x 32': parts that go at once."""
    return '; '.join(', '.join(f'{link_traffic.AXES[ring.axis]} {ring.size}' for ring in part)
                     for part in collective.parts)


def _collective_row(topology, name, collective):
    return [topology, name, collective.kind, f'{len(collective.groups)} x {len(collective.groups[0])}',
            f'{collective.num_bytes / 1e6:.1f}', rings_text(collective)]


def _traffic_row(topology, name, traffic, compiled):
    return [topology, name, *(f'{each / 1e6:.1f}' for each in traffic.link_bytes),
            f'{traffic.bytes_in_turn / 1e6:.1f}', f'{traffic.steps:,}', f'{compiled.temporaries / _MIB:.0f}']


def _ring_row(topology, num_bytes, num_replicas):
    ring = reduction_time.ring(num_bytes, num_replicas, link_bandwidth=1, hop_seconds=0)
    return [topology, 'one ring, by formula', '-', '-', f'{ring.bytes_per_link / 1e6:.1f}', f'{ring.steps:,}', '-']


def rows(compiler, topology, shapes):
    """Compiles the programs for a topology.

    Args:
        compiler: `TpuCompiler`.
        topology: such as 'v5e:4x4'.
        shapes: list of shapes of the gradients.

    Returns:
        Pair of lists of rows, one row a collective, and one a program.
    """
    coordinates, listed, counted = compiler.coordinates(topology), [], []
    for name, program in programs(shapes, coordinates).items():
        compiled = compiler.compile(program, topology, num_replicas=len(coordinates), fast=_FAST.value)
        found = link_traffic.collectives(compiled.hlo, coordinates)
        listed += [_collective_row(topology, name, collective) for collective in found]
        counted.append(_traffic_row(topology, name, link_traffic.traffic(found, coordinates), compiled))
    num_bytes = 4 * sum(tf.TensorShape(shape).num_elements() for shape in shapes)
    return listed, [*counted, _ring_row(topology, num_bytes, len(coordinates))]


def main(unused_argv):
    shapes = gradient_shapes(_MODEL.value)
    with tpu_compiler.TpuCompiler() as compiler:
        found = [rows(compiler, topology, shapes) for topology in _TOPOLOGIES.value]
    listed, counted = (list(itertools.chain(*parts)) for parts in zip(*found))
    common.report(
        common.markdown_table(['topology', 'sum', 'collective', 'groups x replicas', 'MB', 'rings'], listed),
        common.markdown_table(['topology', 'sum', 'MB a link, x', 'MB a link, y', 'MB in turn', 'steps',
                               'MiB of temporaries'], counted),
        f'Gradients of {_MODEL.value}: {len(shapes)} tensors.')


if __name__ == '__main__':
    app.run(main)
