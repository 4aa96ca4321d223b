"""The preset that the benchmark of loading writes is one, and memory is watched."""

import os

import numpy as np
import pytest

from tests import needs


@pytest.fixture(name='benchmark')
def benchmark_fixture(load_benchmark):
    return load_benchmark('memory.preset_loading', '--num_layers=2', '--width=32', '--vocab_size=16')


@needs.keras_hub
def test_kerashub_reads_the_preset(benchmark, tmp_path):
    import keras_hub
    benchmark.make_preset(tmp_path)
    backbone = keras_hub.models.Backbone.from_preset(str(tmp_path))
    assert len(backbone.transformer_layers) == 2 and backbone.count_params() == 2 * (13 * 32 + 2) * 32 + 17 * 32


def test_what_a_process_takes_is_seen(benchmark):
    watch = benchmark.Watch([os.getpid()])
    taken = np.ones([2**20, 8])
    assert watch.peaks()[0] >= taken.nbytes / 2
