"""Runs run.py, and keeps what a worker that is no chief has trained in the file WEIGHTS, for it writes no
checkpoints."""

import os
import pathlib
import runpy
import sys

ROOT = pathlib.Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(pathlib.Path(__file__).parent)]

import numpy as np

from lingpipe.placements import multi_worker_training


def _keep_weights(run):
    def run_and_keep(self):
        run(self)
        np.savez(os.environ['WEIGHTS'], **{name.replace('/', '|'): variable.numpy()
                                           for name, variable in self._program.named_variables.items()})

    return run_and_keep


if 'WEIGHTS' in os.environ:
    multi_worker_training.Follower.run = _keep_weights(multi_worker_training.Follower.run)
runpy.run_path(str(ROOT / 'run.py'), run_name='__main__')
