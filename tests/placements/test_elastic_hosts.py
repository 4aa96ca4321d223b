"""How a pipeline is cut while workers are left out."""

import types

import pytest

from lingpipe.pipeline import gpipe_layer
from lingpipe.placements import elastic_hosts, pipeline_hosts


@pytest.mark.parametrize('fields, num_devices, num_partitions', [
    ({}, 2, 2), ({}, 5, 3), ({'num_replicas': 2}, 5, 2),
    ({'num_replicas': 2}, 1, 3),
    ({'partition_by': [1, 2, 4]}, 2, 3), ({'memory_limit': 1e9}, 2, 3), ({'devices': ['CPU:0', 'CPU:1', 'CPU:2']}, 2, 3),
    ({'schedule': 'interleaved_1f1b', 'num_virtual_stages': 2, 'num_micro_batches': 3}, 2, 3)])
def test_the_model_is_cut_anew_unless_the_cut_is_given(fields, num_devices, num_partitions, monkeypatch, tmp_path):
    monkeypatch.setattr(pipeline_hosts, 'count', lambda: num_devices)
    body = gpipe_layer.GPipeLayer.Params().Set(num_partitions=3, **fields)
    workers = elastic_hosts.ElasticHosts(None, 1, str(tmp_path))
    for left_out, expected in ({'worker:1'}, num_partitions), ((), 3):
        workers._roster = types.SimpleNamespace(config=types.SimpleNamespace(left_out=left_out))
        assert workers._num_partitions(body) == expected
