"""A process that has imported TensorFlow, has made no devices, and forks programs; `forked_programs` starts it.

    tests ──socket──> nursery ──fork──> run.py of worker 0
                              ──fork──> local_cluster ──fork──> run.py of worker 0
"""

import contextlib
import ctypes
import faulthandler
import gc
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import traceback

import keras  # noqa: F401
import tensorflow as tf  # noqa: F401
import tensorflow_datasets as tfds

from lingpipe.cluster import waits
from lingpipe.command_line import cluster_modes  # noqa: F401
from lingpipe.placements import multi_worker_training  # noqa: F401

_LONGEST_REQUEST = 2**16
_HANDLERS = {signal.SIGTERM: signal.SIG_DFL, signal.SIGHUP: signal.SIG_DFL, signal.SIGUSR1: signal.SIG_DFL, signal.SIGINT: signal.default_int_handler}


def main():
    tfds.core.DatasetBuilder  # loads what it loads when it is first used  # noqa: B018
    waits.start = _start
    gc.freeze()
    with socket.socket(fileno=int(sys.argv[1])) as control:
        while True:  # until the tests have ended
            request, descriptors, *_ = socket.recv_fds(control, _LONGEST_REQUEST, 4)
            if not request:
                return
            _serve(*json.loads(request), *descriptors)


def _serve(words, environment, folder, into, out, errors, life):
    """Start a program; tell its number, and its return code when it has ended."""
    process = _start(
        [sys.executable, *words], env=os.environ | environment, cwd=folder, stdin=into, stdout=out, stderr=errors)
    for descriptor in (into, out, errors):
        os.close(descriptor)
    os.write(life, f'{process.pid}\n'.encode())
    threading.Thread(target=_tell_end, args=(process, life), daemon=True).start()


def _tell_end(process, life):
    code = process.wait()
    with contextlib.suppress(BrokenPipeError):  # the tests do not need to know
        os.write(life, f'{code}\n'.encode())
    os.close(life)


def _start(command, env=None, pass_fds=(), **options):
    """Stand in for `waits.start`: what `subprocess` would call before it replaces the process's program is the
    program."""
    parent, environment = os.getpid(), dict(os.environ if env is None else env)

    def run():
        waits.die_with(parent)
        for start, end in zip([2, *sorted(pass_fds)], [*sorted(pass_fds), os.sysconf('SC_OPEN_MAX')]):
            os.closerange(start + 1, end)  # also what `subprocess` waits for
        _become(command, environment)

    return subprocess.Popen(  # Python ignores some signals from its start on
        command, process_group=0, pass_fds=pass_fds, preexec_fn=run, restore_signals=False, **options)


def _become(command, environment):
    """Do what `python words...` does in a new process."""
    for number, handler in _HANDLERS.items():
        signal.signal(number, handler)
    os.environ.clear()
    os.environ.update(environment)
    for name in ('stdout', 'stderr'):
        _forget(getattr(sys, name))
        is_shown_at_once = name == 'stderr' or 'PYTHONUNBUFFERED' in environment
        new = open(
            1 + (name == 'stderr'), 'w', buffering=1 if is_shown_at_once else -1, encoding='utf-8', closefd=False)
        setattr(sys, name, new)
        setattr(sys, f'__{name}__', new)
    faulthandler.enable()
    sys.orig_argv = list(command)
    ctypes.pythonapi.Py_Exit(_exit_code(command[1:]))  # with all that TensorFlow does at the end of a program


def _forget(file):
    """Keep what a file of the parent still holds from being written by the child too."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(file))


def _exit_code(words):
    try:
        _run(words)
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _run(words):
    first, *others = words
    sys.path[:1] = os.environ['PYTHONPATH'].split(os.pathsep)
    if first == '-m':
        sys.argv = others
        runpy.run_module(others[0], run_name='__main__', alter_sys=True)
    elif first == '-c':
        sys.argv = [first, *others[1:]]
        exec(others[0], {'__name__': '__main__'})
    else:
        sys.argv = words
        sys.path.insert(0, os.path.dirname(first))
        runpy.run_path(first, run_name='__main__')


if __name__ == '__main__':
    main()
