"""A cluster on this machine that is started again whenever training can resume."""

import pathlib
import re
import signal
import subprocess
import sys
import threading
import time

from lingpipe.cluster import waits

_ROOT = pathlib.Path(__file__).resolve().parents[2]


class RestartedCluster:
    """A pipeline on two workers.

    Args:
        words: words that train on one machine.
        environment: dictionary of the environment of the processes.

    Attributes:
        lines: list of what all processes printed.
    """

    def __init__(self, words, environment):
        self.lines = []
        self._command = [sys.executable, '-m', 'lingpipe', 'local_cluster', '--workers=2', '--', *words,
                         '--cluster=pipeline', '--step_timeout_seconds=60']
        self._environment = environment | {'PYTHONPATH': str(_ROOT), 'TF_CPP_MIN_LOG_LEVEL': '3'}
        self._process, self._code = None, None
        self._is_stopped = False
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self):
        """Start it, from the newest checkpoint if there is one."""
        self._thread.start()

    def exit_code(self):
        """Wait for the end; return the exit code, and all lines are there."""
        self._thread.join()
        return self._code

    def stop(self):
        """Ask training to end; return its exit code."""
        self._is_stopped = True
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        return self.exit_code()

    def process_of(self, task):
        """Return the number of the newest process of a task, such as 'worker 0'."""
        found = [line.rpartition(' ')[2] for line in list(self.lines) if line.startswith(f'[launcher] {task} is process ')]
        return int(found[-1])

    def wait_for(self, pattern, first=0, seconds=300):
        """Wait for a line by a regular expression, while the cluster runs; return its number, or None."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and self._code is None:
            for number in range(first, len(self.lines)):
                if re.search(pattern, self.lines[number]):
                    return number
                first = number + 1
            time.sleep(.01)
        return None

    def _run(self):
        code = waits.TRY_AGAIN
        while not self._is_stopped and (code == waits.TRY_AGAIN or code > 128):
            self._process = waits.start(
                self._command, env=self._environment, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT)
            self.lines.extend(line.rstrip('\n') for line in self._process.stdout)
            code = self._process.wait()
        self._code = code
