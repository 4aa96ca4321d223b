"""Throughput over K and M as the benchmark normalises it, of stages that are equal and send in no time."""

import math

import keras
import pytest
import tensorflow as tf

from lingpipe.layers import keras_params
from lingpipe.partition import accelerators


@pytest.fixture
def gpipe_throughput(load_benchmark):
    return load_benchmark('scaling.gpipe_throughput', '--batch_size=32')


@pytest.fixture
def found(gpipe_throughput):
    """Throughputs of eight equal layers where moving data takes no time."""
    accelerator = accelerators.find('v3')._replace(memory_bandwidth=math.inf, link_bandwidth=math.inf)
    return gpipe_throughput.throughputs(_equal_layers(gpipe_throughput), accelerator)


def _equal_layers(gpipe_throughput):
    layers = [keras_params.KerasParams(keras.layers.Dense, units=16)] * 8
    return gpipe_throughput.Model('equal layers', layers, tf.TensorSpec([1, 16]))


def test_more_micro_batches_fill_the_bubble_of_two_partitions(found):
    """F and R take 1, B takes 2: (2, 4) by hand; (2, 32) alike, 1 + 32 + 2 + 31 * 3 + 2. One micro-batch takes 2 * 3 M.

    ::

        device 0  F0F1F2F3......B3--R2B2--R1B1--R0B0--        18
        device 1  ..F0F1F2F3B3--R2B2--R1B1--R0B0--....
    """
    assert found[2, 4] / found[2, 1] == pytest.approx(24 / 18)
    assert found[2, 32] / found[2, 1] == pytest.approx(192 / 130)


def test_throughput_is_relative_to_the_smallest_k_and_m(gpipe_throughput):
    """The published figures stand beside it."""
    published = {'equal layers': {1: (1, 1.07, 1.3), 4: (1.7, 3.2, 4.8)}}
    rows = gpipe_throughput._rows(published, [_equal_layers(gpipe_throughput)], accelerators.find('v3'))
    assert [row[:4] for row in rows] == [['equal layers', 'v3', 1, '1'], ['equal layers', 'v3', 4, '1.7']]
    assert rows[0][4] == '1.00'
    assert [row[5::2] for row in rows] == [['1.07', '1.3'], ['3.2', '4.8']]
