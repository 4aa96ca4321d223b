"""Checkpoints after a kill at each moment of a save."""

import pathlib
import subprocess
import sys

from benchmarks.faults import save_moments

_ROOT = pathlib.Path(__file__).parents[3]


def test_no_moment_of_a_save_is_one_at_which_a_kill_does_harm():
    words = '-m benchmarks.faults.killed_saves --kills=7 --at_each_moment=1 --seconds=0.1'.split()
    outcome = subprocess.run([sys.executable, *words], cwd=_ROOT, capture_output=True, text=True, timeout=600)
    assert outcome.returncode == 0, outcome.stderr
    for moment in save_moments.MOMENTS:
        row, = [line for line in outcome.stdout.splitlines() if line.startswith(f'| {moment} ')]
        assert row.split('|')[2].strip() == '1'
    assert 'Every listed checkpoint was whole. At the end all values are those of an undisturbed run' in outcome.stdout
