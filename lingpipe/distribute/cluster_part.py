"""One process of a cluster on this machine, with its output told apart from that of the others."""

import os
import subprocess
import sys
import threading

from lingpipe.distribute import child_process, exit_codes

_lock = threading.Lock()


def say(text, name='launcher'):
    """Prints a line with the name of who says it before it."""
    with _lock:
        sys.stdout.write(f'[{name}] {text}\n')
        sys.stdout.flush()


class Part:
    """A process that can be started again.

    Args:
        config: its `ClusterConfig`.
        command: list of words.
        environment: dict of what is in its environment beside TF_CONFIG.
        log_dir: folder for a file of its output, or None.
        max_restarts: how often to start it again after a fault.

    Attributes:
        name: such as 'worker 1'; 'chief'.
        code: how it ended, as `subprocess` gives it; None: it runs.
    """

    def __init__(self, config, command, environment, log_dir=None, max_restarts=0):
        self.name = config.task_type if config.task_type == 'chief' else config.task.replace(':', ' ')
        self.code = None
        self._command = command
        self._environment = {**environment, 'TF_CONFIG': config.to_json()}
        self._log = open(os.path.join(log_dir, self.name.replace(' ', '_') + '.log'), 'a', encoding='utf-8') if log_dir else None
        self._restarts_left = max_restarts
        self._process = self._reader = None

    def start(self):
        """Starts it; from the main thread."""
        self._process = child_process.start(
            self._command, env=self._environment, text=True, errors='replace', stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self._reader = threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True)
        self._reader.start()
        say(f'{self.name} is process {self._process.pid}')

    def poll(self):
        """Returns whether it has just ended."""
        if self.code is not None or self._process.poll() is None:
            return False
        self.code = self._process.returncode
        self._reader.join(1)
        say(f'{self.name} {child_process.ending(self.code)}')
        return True

    def is_running(self):
        """Says whether it was started and has not ended."""
        return self._process is not None and self._process.poll() is None

    def can_restart(self):
        """Says whether it ended by a fault that a restart can mend, and may be restarted."""
        return self._restarts_left > 0 and self.is_lost()

    def is_lost(self):
        """Says whether it was killed, or ended because another was lost: not by itself."""
        return self.code is not None and (self.code < 0 or self.code == exit_codes.TRY_AGAIN)

    def restart(self):
        """Starts it again, on its own port."""
        self._restarts_left -= 1
        self.code = None
        self.start()

    def send_signal(self, number):
        """Sends a signal, if it runs."""
        if self.is_running():
            self._process.send_signal(number)

    def stop(self, seconds):
        """Waits so long for its end, then kills it."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self.poll()
        if self._log:
            self._log.close()

    def _read(self, lines):
        for line in lines:
            say(line.rstrip('\n'), self.name)
            if self._log and not self._log.closed:
                self._log.write(line)
                self._log.flush()
