"""Processes of benchmarks that begin with TensorFlow imported: to import it takes longer than what most of them do.

They are forked from a process that has imported it and has done nothing else, and so has one thread::

    tests ── starts once ──> fork server: imports TensorFlow, waits
      │                           │ forks
      └── a line, an answer ──> common.serve(), as in a process of its own
"""

import contextlib
import functools
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import types

_ROOT = pathlib.Path(__file__).parents[2]
_LONGEST_REQUEST = 2**16


class _Forked:
    """What `common.LineProcess` needs of `subprocess.Popen`.

    Args:
        fork: function of a program's arguments and of descriptors: its input, output and errors, and one for what becomes of it.
        command: list of words: a Python, -c, a program that is taken to be `common.serve()`, and what it is called with.
        stderr: file for its errors.
    """

    def __init__(self, fork, command, *, stderr, **unused):
        (questions, stdin), (stdout, answers), (become, life) = os.pipe(), os.pipe(), os.pipe()
        fork(command[3:], [questions, answers, stderr.fileno(), life])
        for descriptor in (questions, answers, life):
            os.close(descriptor)
        self.stdin, self.stdout, self._life = open(stdin, 'w'), open(stdout), open(become)
        self._number = int(self._life.readline())
        self._status = None

    def wait(self):
        if self._status is None:
            self._status = int(self._life.readline())
        return self._status

    def kill(self):
        with contextlib.suppress(ProcessLookupError):  # it may have ended
            if self._status is None:
                os.kill(self._number, signal.SIGKILL)

    def communicate(self):
        self.wait()
        for file in (self.stdin, self.stdout, self._life):
            with contextlib.suppress(BrokenPipeError):  # a question that nobody has read
                file.close()


def _stand_in(fork):
    """Returns what stands in for the module `subprocess`."""
    return types.SimpleNamespace(Popen=functools.partial(_Forked, fork), PIPE=subprocess.PIPE)


class ForkServer:
    """The process from which others are forked. It uses oneDNN, so that TensorFlow's allocator counts.

    Attributes:
        subprocess: what stands in for the module `subprocess` in `common`.
    """

    def __init__(self):
        self._control, control = socket.socketpair(type=socket.SOCK_SEQPACKET)
        paths = os.pathsep.join([str(_ROOT / 'benchmarks'), str(_ROOT)])
        # OpenBLAS would start threads, which a fork does without.
        environment = os.environ | {'PYTHONPATH': paths, 'OPENBLAS_NUM_THREADS': '1'}
        environment.pop('TF_ENABLE_ONEDNN_OPTS', None)
        with control:
            self._process = subprocess.Popen(
                [sys.executable, '-c', f'from tests.benchmarks import forked_process; forked_process.listen({control.fileno()})'],
                env=environment, stdin=subprocess.DEVNULL, pass_fds=[control.fileno()])
        self.subprocess = _stand_in(self._fork)

    def _fork(self, words, descriptors):
        socket.send_fds(self._control, [json.dumps(words).encode()], descriptors)

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self._control.close()
        self._process.wait()


def listen(descriptor):
    """Runs in the fork server: forks for each request that comes through a socket, until its other end is closed."""
    import common  # noqa: F401

    import lingpipe  # noqa: F401

    with socket.socket(fileno=descriptor) as control:
        while True:
            request, descriptors, *_ = socket.recv_fds(control, _LONGEST_REQUEST, 4)
            _forget_the_ended()
            if not request:
                return
            _fork(json.loads(request), descriptors)
            for descriptor in descriptors:
                os.close(descriptor)


def _forget_the_ended():
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _fork(words, descriptors):
    """Forks a process that tells the number, and then the exit status, of a process that it forks to do the work."""
    if os.fork():
        return
    _close_all_but({0, 1, 2, *descriptors})
    *streams, life = descriptors
    number = os.fork()
    if not number:
        _serve(words, streams)
    for descriptor in streams:
        os.close(descriptor)
    os.write(life, f'{number}\n'.encode())
    status = os.waitstatus_to_exitcode(os.waitpid(number, 0)[1])
    os.write(life, f'{status}\n'.encode())
    os._exit(0)


def _close_all_but(kept):
    """A pipe ends when no process has its other end."""
    for descriptor in map(int, os.listdir('/proc/self/fd')):
        if descriptor not in kept:
            with contextlib.suppress(OSError):  # that of the folder itself is closed already
                os.close(descriptor)


def _serve(words, streams):
    import common

    common.subprocess = _stand_in(_fork)  # a process that starts others has not used TensorFlow yet either
    for standard, descriptor in enumerate(streams):
        os.dup2(descriptor, standard)
    sys.argv = ['-c', *words]
    try:
        common.serve()
    except BaseException:
        sys.excepthook(*sys.exc_info())
        os._exit(1)
    os._exit(0)
