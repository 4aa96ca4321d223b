import pytest
import tensorflow as tf

from lingpipe.partition import tensor_sizes
from lingpipe.tools import stable_hlo, tpu_compiler
from tests import needs

_SHAPES = [(), (3,), (130,), (1000,), (5000,), (16, 8), (60, 100), (4, 1001), (2, 1), (300, 5, 7), (200, 1, 130),
           (3, 3, 1, 64), (16, 32, 32, 8), (4, 28, 28, 3), (4, 7, 7, 832), (16, 1, 1, 100), (1, 1024, 32, 64)]


def _sizes(dtype):
    return [tensor_sizes.tiled_size(tf.TensorShape(shape), dtype) for shape in _SHAPES]


@pytest.mark.parametrize('shape, dtype, padded', [
    ((16, 8), tf.float32, 8 * 128 * 4),
    ((16, 32, 32, 8), tf.float32, 16 * 32 * 8 * 128 * 4),
    ((4, 1001), tf.bfloat16, 4 * 1024 * 2),
    ((3, 3, 1, 64), tf.float32, 3 * 3 * 128 * 4),
    ((3, 3, 1, 64), tf.bool, 3 * 4 * 128),
    ((1000,), tf.float32, 1024 * 4),
    ((3,), tf.bfloat16, 256 * 2),
    ((0, 5), tf.float32, 128 * 4),
])
def test_a_tensor_takes_the_fewest_tiles_that_two_of_its_axes_allow(shape, dtype, padded):
    assert tensor_sizes.tiled_size(tf.TensorShape(shape), dtype) == padded


def test_without_tiles_elements_lie_side_by_side():
    assert tensor_sizes.plain_size(tf.TensorShape([3, 5, 7]), tf.bfloat16) == 210


@needs.tpu_compiler
@needs.stablehlo
@pytest.mark.parametrize('dtype', [tf.float32, tf.bfloat16, tf.int32])
def test_sizes_are_those_of_the_compilers_own_layouts(dtype):
    program = stable_hlo.lower(lambda tensors: [tensor + 1 for tensor in tensors],
                                 [tf.TensorSpec(shape, dtype) for shape in _SHAPES])
    with tpu_compiler.TpuCompiler() as compiler:
        compiled = compiler.compile(program, 'v5e:2x2', fast=True)
    arguments, _ = stable_hlo.entry_sizes(compiled.hlo)
    assert arguments == _sizes(dtype)
