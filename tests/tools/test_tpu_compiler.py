import importlib.util
import os
import signal

import pytest
import tensorflow as tf

from lingpipe.stages import stage_program
from lingpipe.tools import stable_hlo, tpu_compiler
from tests import needs

needs_compiler = needs.tpu_compiler


def product(size):
    return stable_hlo.lower(
        lambda a, b: [tf.matmul(a, b)], tf.TensorSpec([size, 128]), tf.TensorSpec([128, size]))


@pytest.fixture(scope='module')
def compiler(tmp_path_factory):
    with tpu_compiler.TpuCompiler(tmp_path_factory.mktemp('compiled')) as compiler:
        yield compiler


@needs_compiler
def test_sizes_of_a_product_are_those_of_its_tensors(compiler):
    compiled = compiler.compile(product(256))
    assert compiled.arguments == 2 * 4 * 256 * 128
    assert stable_hlo.entry_sizes(compiled.hlo) == ([4 * 256 * 128] * 2, [4 * 256 * 256])
    assert not any(compiled.collectives.values())


@needs_compiler
def test_sizes_of_padded_tensors_add_up_to_what_the_compiler_says(compiler):
    specs = [tf.TensorSpec([60, 100]), tf.TensorSpec([64]), tf.TensorSpec([5, 3, 33], tf.bfloat16),
             tf.TensorSpec([], tf.bool), tf.TensorSpec([7], tf.int64)]
    compiled = compiler.compile(stable_hlo.lower(lambda *tensors: [tf.add_n(
        [tf.reduce_sum(tf.cast(tensor, tf.float32)) for tensor in tensors])], *specs))
    sizes, _ = stable_hlo.entry_sizes(compiled.hlo)
    assert sizes[0] == 4 * 64 * 128 and sum(sizes) == compiled.arguments


@needs_compiler
def test_a_result_is_kept_on_disk_and_found_by_another_compiler(tmp_path):
    program = product(128)
    with tpu_compiler.TpuCompiler(tmp_path) as compiler:
        first = compiler.compile(program)
    with tpu_compiler.TpuCompiler(tmp_path) as compiler:
        assert compiler.compile(program) == first
        assert compiler._worker is None
        assert compiler.compile(program, fast=True).seconds != first.seconds


@needs_compiler
def test_what_does_not_fit_is_refused_with_the_bytes_that_are_there(compiler):
    spec = tf.TensorSpec([40_000, 40_000])
    program = stable_hlo.lower(lambda a, b: [tf.matmul(a, b)], spec, spec)
    for _ in range(2):  # the second time from disk
        with pytest.raises(tpu_compiler.OutOfTpuMemory,
                           match='needs 17.9. GiB and there are 15.75 GiB. Use smaller') as caught:
            compiler.compile(program)
        assert caught.value.limit == tpu_compiler.memory('v5e:2x2')
        assert caught.value.needed == pytest.approx(3 * 4 * 40_000**2, rel=0.01)


@needs_compiler
def test_one_program_is_partitioned_over_devices(compiler):
    from tensorflow.python.compiler.xla.experimental import xla_sharding

    def rolled(stacked):
        stacked = xla_sharding.split(stacked, 0, 4, use_sharding_op=True)
        return [xla_sharding.split(tf.roll(stacked, 1, 0), 0, 4, use_sharding_op=True)]

    program = stable_hlo.lower(rolled, tf.TensorSpec([4, 8, 128]))
    compiled = compiler.compile(program, 'v5e:2x2', num_devices=4, spmd=True)
    assert compiled.arguments == 4 * 8 * 128  # a quarter
    assert compiled.collectives['collective-permute'] and not compiled.collectives['all-gather']


@needs_compiler
def test_replicas_have_the_coordinates_of_all_cores(compiler):
    found = compiler.compile(product(128), 'v3:4x4', num_replicas=32).coordinates
    assert sorted(found) == [[x, y, 0, core] for x in range(4) for y in range(4) for core in range(2)]
    assert found[:6] == [[0, 0, 0, 0], [0, 0, 0, 1], [1, 0, 0, 0], [1, 0, 0, 1], [0, 1, 0, 0], [0, 1, 0, 1]]


@needs_compiler
def test_the_compiler_survives_refusals_crashes_and_timeouts(compiler):
    """The error says which it was, and the next program compiles."""
    with pytest.raises(tpu_compiler.TpuCompileError, match='The TPU compiler for v5e:2x2 refused the program: '):
        compiler.compile('module {')
    os.kill(compiler._worker._process.pid, signal.SIGKILL)
    with pytest.raises(tpu_compiler.TpuCompileError, match='The TPU compiler died.'):
        compiler.compile('module { }')
    assert compiler.compile(product(384)).arguments
    compiler._timeout, patience = 0, compiler._timeout
    with pytest.raises(tpu_compiler.TpuCompileError, match='took more than timeout_seconds=0. Raise it, or compile '
                                                           'with fast'):
        compiler.compile(product(512))
    compiler._timeout = patience


@needs_compiler
def test_a_program_with_too_many_parameters_is_refused_with_a_remedy(compiler):
    arguments = ', '.join(f'%argument_{number}: tensor<f32>' for number in range(stage_program.MOST_TPU_PARAMETERS + 1))
    program = f'module {{ func.func public @main({arguments}) -> tensor<f32> {{ return %argument_0 : tensor<f32> }} }}'
    with pytest.raises(tpu_compiler.TpuCompileError, match=r"more parameters \(3295\) than supported .* Set "
                                                           r"recompute='stage'"):
        compiler.compile(program, 'v2:2x2', fast=True)


def test_an_unknown_topology_is_refused_with_those_that_there_are():
    with pytest.raises(ValueError, match="tpu_topology='v5e:2x3' is unknown; did you mean v5e:"):
        tpu_compiler.check('v5e:2x3')


def test_without_the_packages_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setattr(importlib.util, 'find_spec', lambda name: None)
    with pytest.raises(tpu_compiler.TpuCompileError, match=r"jaxlib and libtpu cannot be imported. Run pip install "
                                                           r"'lingpipe\[tpu-compile\]'"):
        tpu_compiler.TpuCompiler()


@pytest.mark.parametrize(
    'topology, mesh', [('v3:2x2', [2, 2, 1, 2]), ('v5e:2x4', [2, 4, 1, 1]), ('v4:2x2x1', [2, 2, 1, 1])])
def test_a_topology_is_the_mesh_that_tensorflow_finds_there(topology, mesh):
    assert tpu_compiler.mesh(topology) == mesh
