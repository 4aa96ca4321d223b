"""Runs run.py in a process of a cluster, or alone, which leaves its number in the folder PIDS for those who want to
strike it."""

import json
import os
import pathlib
import runpy
import sys

ROOT = pathlib.Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(pathlib.Path(__file__).parent)]

task = json.loads(os.environ.get('TF_CONFIG', '{"task": {"type": "alone", "index": 0}}'))['task']
pathlib.Path(os.environ['PIDS'],
             f'{task["type"]}:{task["index"]}').write_text(str(os.getpid()))  # a supervisor's child comes last
runpy.run_path(str(ROOT / 'run.py'), run_name='__main__')
