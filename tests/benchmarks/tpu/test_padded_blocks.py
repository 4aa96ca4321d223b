"""Floating-point operations of convolutions, counted by hand."""

import keras
import pytest
import tensorflow as tf

from lingpipe.layers.keras_params import KerasParams
from lingpipe.partition import layer_analysis


def convolution(filters, **fields):
    return KerasParams(
        keras.layers.Conv2D, filters=filters, kernel_size=3, padding='same', use_bias=False, **fields)


@pytest.fixture
def benchmark(load_benchmark):
    return load_benchmark('tpu.padded_blocks')


@pytest.fixture
def blocks(benchmark):
    """Two convolutions on images of 8x8 and one on 4x4, each of which keeps shapes, and others that do not."""
    layers = [convolution(2), convolution(2), convolution(4, strides=2), convolution(4), convolution(3)]
    return benchmark.blocks_alike_but_for_sizes(
        layer_analysis.named_layer_params(layers), tf.TensorSpec([None, 8, 8, 2]))


def test_blocks_that_differ_in_sizes_only_are_found(blocks):
    assert [(params.filters, flops.total) for params, _, flops in blocks] == [
        (2, 2 * 8 * 8 * 9 * 2 * 2), (2, 2 * 8 * 8 * 9 * 2 * 2), (4, 2 * 4 * 4 * 9 * 4 * 4)]


def test_padded_blocks_have_the_largest_image_and_the_most_filters(benchmark, blocks):
    assert benchmark.padded(blocks).total == 2 * 8 * 8 * 9 * 4 * 4


def test_a_row_compares_the_sums_over_all_blocks(benchmark):
    """Images of an eighth of the size with eight times the filters cost the same, and padded 64 times that."""
    name, count, sizes, *_, factor = benchmark._row('params.resnet50.ResNet50Digits')
    assert (name, count, sizes) == ('params.resnet50.ResNet50Digits', 12, '2 of 16, 3 of 32, 5 of 64, 2 of 128')
    assert float(factor) == pytest.approx(64.0, rel=0.05)
