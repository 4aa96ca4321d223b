"""Runs run.py in a process of a cluster, or alone, which leaves its number in the folder PIDS for those who want to
strike it.

With LEFT_OUT=FILE a worker that is killed is started again once the FILE says that it is left out, and has the chief
stop once nobody is.
"""

import json
import os
import pathlib
import runpy
import signal
import sys
import threading
import time

ROOT = pathlib.Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(pathlib.Path(__file__).parent)]

task = json.loads(os.environ.get('TF_CONFIG', '{"task": {"type": "alone", "index": 0}}'))['task']
from lingpipe.cluster import waits

name = f'{task["type"]}:{task["index"]}'
number = pathlib.Path(os.environ['PIDS'], name)


def wait_until_left_out(names):
    while json.loads(pathlib.Path(os.environ['LEFT_OUT']).read_text())['left_out'] != names:
        time.sleep(0.05)


def newest_checkpoint():
    names = os.listdir(pathlib.Path(os.environ['LEFT_OUT']).parents[1] / 'train')
    return max(int(name[len('ckpt-'):-len('.index')]) for name in names if name.endswith('.index'))


def stop_chief():
    wait_until_left_out([])
    newest = newest_checkpoint()
    while newest_checkpoint() == newest:  # the chief connects, and does not yet look for signals
        time.sleep(0.05)
    os.kill(int(number.with_name('chief:0').read_text()), signal.SIGTERM)


def start_again_if_killed():
    """Go on in a child, and in another one if that is killed."""
    parent, child = os.getpid(), os.fork()
    if child == 0:
        return waits.die_with(parent)
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != -signal.SIGKILL:
        os._exit(0)
    wait_until_left_out([name])
    threading.Thread(target=stop_chief, daemon=True).start()


if 'LEFT_OUT' in os.environ and task['type'] == 'worker':
    start_again_if_killed()
number.write_text(str(os.getpid()))
runpy.run_path(str(ROOT / 'run.py'), run_name='__main__')
