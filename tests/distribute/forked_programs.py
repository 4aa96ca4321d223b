"""Programs that need not import TensorFlow, which takes longer than what most of them do: they are forked (`nursery.py`)."""

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
_ROOT = pathlib.Path(__file__).parents[2]


class ForkedProgram:
    """What tests need of `subprocess.Popen`, for a Python program that is forked.

    Args:
        words: list of the words after 'python'.
        environment: dict of what is in its environment beside what the tests have there.
        folder: where it runs, or None.
        has_one_output: whether what it writes to standard error is in its output too.

    Attributes:
        pid: number of the process.
        returncode: as `subprocess` gives it, or None.
        stdout: file of what it prints.
    """

    def __init__(self, words, environment, folder=None, has_one_output=False):
        (out, out_end), (life, life_end) = os.pipe(), os.pipe()
        self.stdout, self._life = open(out, encoding='utf-8'), open(life, encoding='ascii')
        self._errors = tempfile.TemporaryFile('w+', encoding='utf-8')
        request = [list(map(str, words)), environment, folder and str(folder)]
        ends = [out_end, out_end if has_one_output else self._errors.fileno(), life_end]
        socket.send_fds(_nursery(), [json.dumps(request).encode()], ends)
        os.close(out_end)
        os.close(life_end)
        self.pid = int(self._life.readline())
        self.returncode = None

    def await_error_line(self, start):
        """Waits until it has written a line to standard error that starts so, or has ended."""
        while self.poll() is None and not any(line.startswith(start) for line in self._error_lines()):
            time.sleep(0.05)

    def _error_lines(self):
        written = os.pread(self._errors.fileno(), os.fstat(self._errors.fileno()).st_size, 0)
        return written.decode(errors='ignore').splitlines()

    def poll(self):
        """Returns `returncode`."""
        if self.returncode is None and select.select([self._life], [], [], 0)[0]:
            self.returncode = int(self._life.readline())
        return self.returncode

    def wait(self, timeout=300):
        """Waits for its end, which it makes after so many seconds; returns `returncode`."""
        if self.returncode is None:
            with self._killed_after(timeout):
                self.returncode = int(self._life.readline())
        return self.returncode

    def communicate(self, timeout=300):
        """Returns, after its end as `wait` awaits it, what it printed, and what it wrote to standard error."""
        with self._killed_after(timeout):
            printed = self.stdout.read()
        self.wait(timeout)
        self._errors.seek(0)
        return printed, self._errors.read()

    def send_signal(self, number):
        """Sends a signal, if it runs."""
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self):
        """Ends it at once."""
        self.send_signal(signal.SIGKILL)

    @contextlib.contextmanager
    def _killed_after(self, seconds):
        timer = threading.Timer(seconds, self.kill)
        timer.start()
        try:
            yield
        finally:
            timer.cancel()


@functools.cache
def _nursery():
    """Starts the nursery of this process, which ends with it; returns a socket to it."""
    ours, other = socket.socketpair(type=socket.SOCK_SEQPACKET)
    environment = os.environ | {'PYTHONPATH': str(_ROOT), 'OPENBLAS_NUM_THREADS': '1'}  # its threads would not be forked
    with other:
        process = subprocess.Popen([sys.executable, _NURSERY, str(other.fileno())], env=environment, pass_fds=[other.fileno()])
    atexit.register(process.wait)
    atexit.register(ours.close)
    return ours
