"""Restarting training after a crash or the loss of a worker, without a person."""

import contextlib
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

from lingpipe.cluster import child_process

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_INDEX = re.compile(r'ckpt-(\d+)\.index')
_POLL_SECONDS = .2
_LONGEST_PAUSE = 60  # seconds
_SECONDS_TO_LOOK = 60
_LONG_LIFE = 600  # seconds
_SECONDS_TO_STANDBY = 20  # the first child has then started


class Supervisor:
    """Runs a command as a child, and restarts it after a fault that a restart can fix.

    Such faults are the exit code TRY_AGAIN, and signals that did not come through this process, as when memory ran out.
    The pauses before the restarts are 1, 2, 4, ... seconds. A checkpoint that is newer than at the last start resets
    restarts and pauses. Machines that see no checkpoints, because only the chief writes them, reset them when the child
    ran for ten minutes.

    Args:
        command: list of words.
        max_restarts: how often to restart without a newer checkpoint in between.
        checkpoints: folder of the checkpoints, or None.
        first_pause: seconds before the first restart.
        silence_seconds: a child that has sent a heartbeat is killed after this time without another; 0: never.
        begin_seconds: a child that has sent none is killed after this time; 0: never.
        keeps_standby: whether a second child imports TensorFlow while the first one works, and takes over when it ends.
    """

    def __init__(self, command: Sequence[str], max_restarts: int, checkpoints: str | None = None,
                 first_pause: float = 1., silence_seconds: float = 0, begin_seconds: float = 0,
                 keeps_standby: bool = False) -> None:
        self._command = command
        self._max_restarts = max_restarts
        self._checkpoints = checkpoints
        self._first_pause = first_pause
        self._limits = silence_seconds, begin_seconds
        self._keeps_standby = keeps_standby
        self._standby: child_process.Standby | None = None
        self._memory = child_process.Memory()
        self._process: subprocess.Popen[Any] | None = None
        self._held_back = None  # signal that came while there was no child to pass it on to
        self._is_stopped = threading.Event()

    def run(self) -> int:
        """Runs the command; returns the exit code of the last child, 128 + number for a signal."""
        with self._passing_signals_on(), contextlib.ExitStack() as stack:
            stack.callback(self._memory.close)
            stack.callback(self._discard_standby)
            restarts, step = 0, self._newest_step(-1)
            while True:
                begin = time.monotonic()
                code = self._run_once()
                newest = self._newest_step(step)
                if newest > step or newest < 0 and time.monotonic() - begin > _LONG_LIFE:
                    restarts, step = 0, newest
                if not _is_temporary(code) or self._is_stopped.is_set():
                    return child_process.exit_code(code)
                if restarts == self._max_restarts:
                    _say(f'The training {child_process.ending(code)}; {restarts} restarts brought no new checkpoint, '
                         'so it is not restarted.')
                    return child_process.exit_code(code)
                restarts += 1
                if not self._pause(code, restarts, newest):
                    return child_process.exit_code(code)

    def _run_once(self):
        self._process, pulse = self._started()
        if self._held_back is not None:
            self._process.send_signal(self._held_back)
        begin = time.monotonic()
        try:
            while self._process.poll() is None:  # a wait could delay a signal that comes just before it
                if self._keeps_standby and not self._standby and time.monotonic() - begin > _SECONDS_TO_STANDBY:
                    self._standby = child_process.Standby(self._command, self._memory)
                if limit := pulse.exceeded(*self._limits):
                    _say(f'The training gave no sign of life for {limit:g} s and is killed.')
                    self._process.kill()
                    self._process.wait()
                time.sleep(_POLL_SECONDS)
            return self._process.returncode
        finally:
            self._process = None
            pulse.close()

    def _started(self):
        """Returns the process of a working child, and its `Pulse`."""
        standby, self._standby = self._standby, None
        if standby and standby.begin():
            return standby.process, standby.pulse
        if standby:
            standby.pulse.close()
        pulse = child_process.Pulse(self._memory)
        return child_process.start(self._command, **pulse.options), pulse

    def _discard_standby(self):
        if self._standby:
            self._standby.discard()

    def _pause(self, code, restarts, newest):
        """Waits before a restart; returns False if a signal asked to stop meanwhile."""
        pause = min(self._first_pause * 2 ** (restarts - 1), _LONGEST_PAUSE)
        is_ready = self._standby and self._standby.process.poll() is None
        seconds = 0 if is_ready else pause  # a standby is there only after some time without a crash
        known = f'the newest checkpoint is that of step {newest}' if newest >= 0 else 'there is no checkpoint yet'
        _say(f'The training {child_process.ending(code)}; restart {restarts} of {self._max_restarts} in {seconds:g} s; '
             f'{known}.')
        return not self._is_stopped.wait(seconds)

    def _newest_step(self, known):
        """Returns the step of the newest checkpoint, -1 without one, `known` if the folder cannot be read."""
        found: queue.SimpleQueue[list[str] | OSError] = queue.SimpleQueue()
        threading.Thread(target=_look, args=(self._checkpoints, found), name='look at checkpoints', daemon=True).start()
        try:
            names = found.get(timeout=_SECONDS_TO_LOOK)
        except queue.Empty:
            names = OSError(f'no answer in {_SECONDS_TO_LOOK} s')
        if isinstance(names, OSError):
            _say(f'{self._checkpoints} cannot be read now ({names}).')
            return known
        steps = [int(match[1]) for match in map(_INDEX.fullmatch, names) if match]
        return max(steps, default=-1)

    @contextlib.contextmanager
    def _passing_signals_on(self):
        previous = {number: signal.signal(number, self._pass_on) for number in _SIGNALS
                    if signal.getsignal(number) is not signal.SIG_IGN}  # such as SIGHUP under nohup
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def _pass_on(self, number, unused_frame):
        self._is_stopped.set()
        if self._process is None:
            self._held_back = number
        else:
            self._process.send_signal(number)


def _is_temporary(code):
    return code < 0 and -code not in _SIGNALS or code == child_process.TRY_AGAIN


def _look(folder, found):
    """Passes on the names in a folder, or the error; a file system that hangs does not stop the supervisor so."""
    try:
        found.put(_names_in(folder))
    except OSError as error:
        found.put(error)


def _names_in(folder):
    if not folder:
        return []
    if '://' in folder:
        import tensorflow as tf  # only TensorFlow reads such folders
        try:
            return tf.io.gfile.listdir(folder) if tf.io.gfile.isdir(folder) else []
        except tf.errors.OpError as error:
            raise OSError(str(error)) from error
    return os.listdir(folder) if os.path.isdir(folder) else []


def _say(sentence):
    print(f'[supervisor] {sentence}', file=sys.stderr, flush=True)
