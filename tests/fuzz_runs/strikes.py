"""Faults that strike a process at a moment of its life: the process counts its moments, and strikes itself.

The variable STRIKE has the fault, the moment and its number, as JSON: {"fault": "KILL", "moment": "file", "number": 7,
"folder": "runs", "note": "notes/3", "limit": 100}. A moment is reached by the model of the run (a batch), or
by what is wrapped here: an operation on a file below the folder.
"""

import collections
import json
import os
import resource
import signal
import sys
import time

import wrapt

START, BATCH, EVALUATION, FILE = MOMENTS = ('start', 'batch', 'evaluation batch', 'file')
_BETWEEN_TWO_SIGNALS = 0.05  # seconds
_OF_FILES = {
    'tensorflow.python.lib.io.file_io': (
        'rename_v2', 'delete_file_v2', 'delete_recursively_v2', 'recursive_create_dir_v2', 'FileIO.write'),
    'tensorflow.io.gfile': ('rename', 'remove', 'rmtree', 'makedirs')}
_OF_CHECKPOINTS = {'tensorflow.python.ops.gen_io_ops': ('save_v2', 'merge_v2_checkpoints')}
_plan = json.loads(os.environ.get('STRIKE', 'null'))
_counts = collections.Counter()


def reach(moment):
    """Count a moment, and strike at the one that was asked for."""
    _counts[moment] += 1
    if _plan and (moment, _counts[moment]) == (_plan['moment'], _plan['number']):
        with open(_plan['note'], 'w') as file:
            file.write(moment)
        _FAULTS[_plan['fault']]()


def prepare():
    """Have the operations on files reach their moment, and ignore SIGHUP where a fault says so."""
    if not _plan:
        return
    if _plan['fault'] == 'nohup':
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    if _plan['moment'] != FILE:
        return
    for functions, concerns in ((_OF_FILES, _is_below_folder), (_OF_CHECKPOINTS, lambda *unused: True)):
        for module, names in functions.items():
            for name in names:
                wrapt.wrap_function_wrapper(module, name, _reaching(concerns))
    sys.addaudithook(_look_at_event)


def _reaching(concerns):
    def wrapper(wrapped, instance, args, kwargs):
        if concerns(getattr(instance, 'name', ''), *args, *kwargs.values()):
            reach(FILE)
        return wrapped(*args, **kwargs)

    return wrapper


def _is_below_folder(*arguments):
    return any(_plan['folder'] in os.path.abspath(os.fspath(argument)) for argument in arguments
               if isinstance(argument, (str, os.PathLike)))


def _look_at_event(event, arguments):
    """Python's own operations on files."""
    if event in ('os.rename', 'os.remove', 'os.truncate', 'os.mkdir') and _is_below_folder(*arguments):
        reach(FILE)


def _send(number, times=1):
    for _ in range(times):
        os.kill(os.getpid(), number)
        time.sleep(_BETWEEN_TWO_SIGNALS * (times > 1))


def _lose_reader():
    """From now on, nobody reads what this process prints."""
    reader, writer = os.pipe()
    for output in (1, 2):
        os.dup2(writer, output)
    os.close(reader)
    os.close(writer)


def _fill_disk():
    """From now on, no file grows beyond a few bytes; the outputs are pipes."""
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (_plan['limit'], hard))


_FAULTS = {
    'INT': lambda: _send(signal.SIGINT), 'TERM': lambda: _send(signal.SIGTERM), 'HUP': lambda: _send(signal.SIGHUP),
    'nohup': lambda: _send(signal.SIGHUP), 'KILL': lambda: _send(signal.SIGKILL),
    'STOP': lambda: _send(signal.SIGSTOP), 'INT twice': lambda: _send(signal.SIGINT, 2),
    'TERM twice': lambda: _send(signal.SIGTERM, 2), 'pipe': _lose_reader, 'full disk': _fill_disk}
FAULTS = tuple(_FAULTS)
