"""Replicas of other processes: their sums, and where these are."""

import json
import pathlib

import numpy as np

from lingpipe.cluster import cluster_config
from tests import forked_programs

PROGRAM = pathlib.Path(__file__).parents[1] / 'programs/sum_over_servers.py'


def test_sums_over_server_processes_are_exact_and_on_their_owners(assert_close):
    chief, *workers = cluster_config.free_addresses(3)
    jobs = {'chief': [chief], 'worker': workers}
    configs = [cluster_config.ClusterConfig(jobs, *task) for task in (('worker', 0), ('worker', 1), ('chief', 0))]
    *servers, leader = [forked_programs.ForkedProgram([PROGRAM], {'TF_CONFIG': config.to_json()}) for config in configs]
    try:
        printed, errors = leader.communicate(timeout=120)
    finally:
        for server in servers:
            server.kill()
    assert leader.returncode == 0, errors
    found = json.loads(printed)
    expected = [np.add(*pair) for pair in zip(*found['parts'])]
    for totals in found['sums'].values():
        devices, values = zip(*totals)
        assert list(devices) == found['owners']
        assert_close(list(map(np.array, values)), expected, 1e-7)
