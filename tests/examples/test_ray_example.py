"""Ray Train starts the processes of a run, and starts them again; where Ray is installed."""

import os
import pathlib
import subprocess
import sys

import pytest

_ROOT = pathlib.Path(__file__).parents[2]


def test_ray_starts_a_cluster_again_after_a_kill(tmp_path):
    pytest.importorskip('ray', reason="needs pip install 'ray[train]'")
    places = [str(_ROOT), str(_ROOT / 'tests/programs')]
    command = [sys.executable, str(_ROOT / 'examples/ray_train.py'), '--workers=2', '--max_failures=1', '--',
               '--model=struck_digits', f'--logdir={tmp_path}/logs',
               '--model_params_override=train.max_steps=20; train.save_interval_seconds=0; train.steps_per_loop=1']
    environment = os.environ | {'PYTHONPATH': os.pathsep.join(places), 'RAY_USAGE_STATS_ENABLED': '0',
                                'STRIKE': f'7 SIGKILL {tmp_path}/struck'}
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert 'resuming from step' in ended.stdout + ended.stderr
    assert (tmp_path / 'logs/train/ckpt-20.index').exists()
