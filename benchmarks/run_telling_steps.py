"""Runs run.py so that it prints a line for every step, from which others see when it stands still."""

import functools
import pathlib
import runpy
import sys

_ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(1, str(_ROOT))

from lingpipe.training import progress

if __name__ == '__main__':
    progress.Progress = functools.partial(progress.Progress, interval_seconds=0)
    runpy.run_path(str(_ROOT / 'run.py'), run_name='__main__')
