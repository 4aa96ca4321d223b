"""Programs that need not import TensorFlow, which takes longer than what most of them do: they are forked
(`nursery.py`)."""

import atexit
import contextlib
import functools
import json
import os
import pathlib
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

_NURSERY = pathlib.Path(__file__).with_name('nursery.py')
_ROOT = pathlib.Path(__file__).parents[1]
_SECONDS_TO_PRINT = 5


class ForkedProgram:
    """What tests need of `subprocess.Popen`, for a Python program that is forked.

    Args:
        words: list of the words after 'python'.
        environment: dict of what is in its environment beside what the tests have there.
        folder: where it runs, or None.
        has_one_output: whether what it writes to standard error is in its output too.
        errors: file that takes what it writes to standard error; None: one of its own.
        with_one_dnn: whether TensorFlow uses oneDNN, without which its allocator does not count.

    Attributes:
        pid: number of the process.
        returncode: as `subprocess` gives it, or None.
        stdin: file of what it reads.
        stdout: file of what it prints.
    """

    def __init__(self, words, environment, folder=None, has_one_output=False, errors=None, with_one_dnn=False):
        (in_end, into), (out, out_end), (life, life_end) = os.pipe(), os.pipe(), os.pipe()
        self.stdin, self.stdout, self._life = open(into, 'w',
                                                   encoding='utf-8'), open(out, encoding='utf-8'), open(life, encoding='ascii')
        self._errors = errors or tempfile.TemporaryFile('w+', encoding='utf-8')
        request = [list(map(str, words)), environment, folder and str(folder)]
        ends = [in_end, out_end, out_end if has_one_output else self._errors.fileno(), life_end]
        socket.send_fds(_nursery(with_one_dnn), [json.dumps(request).encode()], ends)
        for end in (in_end, out_end, life_end):
            os.close(end)
        self.pid = int(self._life.readline())
        self.returncode = None

    def await_error_line(self, start):
        """Wait until it has written a line to standard error that starts so, or has ended."""
        while self.poll() is None and not any(line.startswith(start) for line in self._error_lines()):
            time.sleep(0.05)

    def _error_lines(self):
        written = os.pread(self._errors.fileno(), os.fstat(self._errors.fileno()).st_size, 0)
        return written.decode(errors='ignore').splitlines()

    def poll(self):
        """Return `returncode`."""
        if self.returncode is None and select.select([self._life], [], [], 0)[0]:
            self.returncode = int(self._life.readline())
        return self.returncode

    def wait(self, timeout=300):
        """Wait for its end; return `returncode`. After so many seconds, end it with a report of where it is."""
        if self.returncode is None:
            with self._killed_after(timeout):
                self.returncode = int(self._life.readline())
        return self.returncode

    def communicate(self, timeout=300):
        """Return, after its end as `wait` awaits it, what it printed, and what it wrote to standard error."""
        with contextlib.suppress(BrokenPipeError):  # it may not have read all
            self.stdin.close()
        with self._killed_after(timeout):
            printed = self.stdout.read()
        self.wait(timeout)
        self._errors.seek(0)
        return printed, self._errors.read()

    def send_signal(self, number):
        """Send a signal, if it runs."""
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self):
        """End it at once."""
        self.send_signal(signal.SIGKILL)

    def _abort(self):
        """End it after `faulthandler` has printed its stacks."""
        self.send_signal(signal.SIGABRT)
        time.sleep(_SECONDS_TO_PRINT)
        self.kill()  # a stopped process does not take SIGABRT

    @contextlib.contextmanager
    def _killed_after(self, seconds):
        timer = threading.Timer(seconds, self._abort)
        timer.start()
        try:
            yield
        finally:
            timer.cancel()


def run(words, folder=None, **environment):
    """Run a program to its end; return its code, what it printed, and what it wrote to standard error."""
    program = ForkedProgram(words, {'PYTHONPATH': str(_ROOT), **environment}, folder)
    printed, errors = program.communicate()
    return program.returncode, printed, errors


def start_benchmark(command, *, env, stderr, **unused):
    """Stand in for `waits.start` where a benchmark starts a process that reads and answers lines."""
    return ForkedProgram(command[1:], env, errors=stderr, with_one_dnn=True)


@functools.cache
def _nursery(with_one_dnn):
    """Start a nursery of this process, which ends with it; return a socket to it."""
    ours, other = socket.socketpair(type=socket.SOCK_SEQPACKET)
    environment = os.environ | {'PYTHONPATH': str(_ROOT),
                                'OPENBLAS_NUM_THREADS': '1'}  # its threads would not be forked
    if with_one_dnn:
        environment['TF_ENABLE_ONEDNN_OPTS'] = '1'
    with other:
        process = subprocess.Popen(
            [sys.executable, _NURSERY, str(other.fileno())], env=environment, pass_fds=[other.fileno()])
    atexit.register(process.wait)
    atexit.register(ours.close)
    return ours
