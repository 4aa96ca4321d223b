"""Replicas of other processes: their sums, and where these are."""

import json
import os
import pathlib
import subprocess
import sys

import numpy as np

_ROOT = pathlib.Path(__file__).parents[2]


def test_sums_over_server_processes_are_exact_and_on_their_owners(assert_close):
    environment = {**os.environ, 'PYTHONPATH': str(_ROOT / 'benchmarks')}
    found = json.loads(subprocess.run(
        [sys.executable, '-m', 'tests.distribute.sum_over_servers'], check=True, stdout=subprocess.PIPE, cwd=_ROOT,
        env=environment).stdout)
    expected = [np.add(*pair) for pair in zip(*found['parts'])]
    for totals in found['sums'].values():
        devices, values = zip(*totals)
        assert list(devices) == found['owners']
        assert_close(list(map(np.array, values)), expected, 1e-7)
