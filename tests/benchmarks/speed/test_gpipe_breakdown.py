"""Shares of a step by the planner, against a step drawn by hand, and as measured at the smallest size."""

import dataclasses
import math

import keras
import pytest
import tensorflow as tf

from lingpipe.layers import keras_params
from lingpipe.pipeline import layer_sources
from lingpipe.planner import accelerators, resolution

_TINY = ['--model=decoder', '--num_blocks=2', '--width=8', '--sequence_length=4', '--batch_size=2',
         '--num_micro_batches=2',
         '--num_steps=1']


def _equal_layers():
    layers = [keras_params.KerasParams(keras.layers.Dense, units=16)] * 4
    return resolution.LayerStack(layer_sources.LayersOfParams(layers), tf.TensorSpec([4, 16]), [1])


def test_published_shares_make_a_whole_step(load_benchmark):
    shares = dataclasses.astuple(load_benchmark('speed.gpipe_breakdown').PUBLISHED)
    assert sum(shares) == pytest.approx(100)


def test_planned_shares_of_equal_partitions_are_those_of_the_drawing(load_benchmark):
    """F and R take 1, B takes 2; 3 of 18 are idle.

    ::

        device 0  F0F1F2F3......B3--R2B2--R1B1--R0B0--
        device 1  ..F0F1F2F3B3--R2B2--R1B1--R0B0--....
    """
    gpipe_breakdown = load_benchmark('speed.gpipe_breakdown')
    accelerator = accelerators.find('v3')._replace(memory_bandwidth=math.inf, link_bandwidth=math.inf)
    found = gpipe_breakdown.planned(_equal_layers(), 2, 4, accelerator, 'flops')
    assert dataclasses.asdict(found) == pytest.approx(
        {'compute': 100 * 12 / 18, 'recompute': 100 * 3 / 18, 'bubble': 100 * 3 / 18, 'imbalance': 0, 'transfer': 0,
         'update': 0},
        abs=1e-9)


def test_finite_bandwidth_shows_time_for_transfers_and_updates(load_benchmark):
    gpipe_breakdown = load_benchmark('speed.gpipe_breakdown')
    found = gpipe_breakdown.planned(_equal_layers(), 2, 4, accelerators.find('p100'), 'time')
    assert found.transfer > 0 and found.update > 0
    assert sum(dataclasses.astuple(found)) == pytest.approx(100)


def test_measured_shares_add_up_without_the_update(load_forking):
    shares = load_forking('speed.gpipe_breakdown', *_TINY)._measured()
    assert shares.pop('update') == 'not measured'
    assert sum(map(float, shares.values())) == pytest.approx(100, abs=0.3)
