"""Child processes, which do not outlive their parent and send it heartbeats, and what their exit codes mean.

A child on standby has imported TensorFlow, and can replace another child at once.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from typing import Any

TRY_AGAIN = 75  # EX_TEMPFAIL of sysexits.h: a fault that a restart can fix, such as a lost worker
_SET_SIGNAL_AT_DEATH_OF_PARENT = 1  # PR_SET_PDEATHSIG of prctl(2), which only Linux has
_libc = ctypes.CDLL(None)
_VARIABLE = 'LINGPIPE_HEARTBEAT'
_TURN = 'LINGPIPE_TURN'
_MEMORY = 'LINGPIPE_MEMORY'
_SECONDS_BETWEEN_BEATS = 1
_HEARTBEAT = 'heartbeat'


def start(command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
    """Starts a program in its own process group: Ctrl+C reaches only the parent, which passes it on.

    Call it from the main thread: Linux kills the child when the thread that started it ends.

    Args:
        command: list of words.
        options: further arguments of `subprocess.Popen`.

    Returns:
        `subprocess.Popen`.
    """
    parent = os.getpid()
    return subprocess.Popen(command, process_group=0, preexec_fn=lambda: die_with(parent), **options)


def die_with(parent: int) -> None:
    """Makes the system kill this process when the thread of the parent that started it ends.

    Args:
        parent: process id of the parent.
    """
    if hasattr(_libc, 'prctl'):
        _libc.prctl(_SET_SIGNAL_AT_DEATH_OF_PARENT, signal.SIGKILL)
    if os.getppid() != parent:  # the parent has ended meanwhile
        os._exit(1)


def ending(code: int) -> str:
    """Returns in words how a process ended, from its return code as `subprocess` gives it."""
    return f'was ended by {_signal_name(-code)}' if code < 0 else f'ended with exit code {code}'


def exit_code(code: int) -> int:
    """Returns the exit code, as shells give it, of a process with a return code as `subprocess` gives it."""
    return 128 - code if code < 0 else code


def _signal_name(number):
    try:
        return signal.Signals(number).name
    except ValueError:
        return f'signal {number}'


def is_standby() -> bool:
    """Returns whether the parent has started this process on standby."""
    return _TURN in os.environ


def wait_for_turn() -> None:
    """Waits until the parent says so, and ends this process if the parent ends; returns at once without standby."""
    pipe = os.environ.pop(_TURN, None)
    if pipe is not None and not os.read(int(pipe), 1):
        os._exit(1)


class Memory:
    """Two pieces of memory that one child after the other can read and write; the system frees them after the last one.

    Attributes:
        pieces: file descriptors; none where the system has no such memory.
    """

    def __init__(self) -> None:
        try:
            self.pieces = [os.memfd_create(f'piece {number} of state') for number in range(2)]
        except (AttributeError, OSError):  # not Linux, or it is forbidden
            self.pieces = []

    def close(self) -> None:
        """Leaves them to the children."""
        for piece in self.pieces:
            os.close(piece)


def memory() -> list[int]:
    """Returns the pieces of memory that the parent has passed to this process, as file descriptors; none a second time.
    """
    return [int(piece) for piece in os.environ.pop(_MEMORY, '').split()]


class Standby:
    """A child that has started, but waits before it begins its work.

    Args:
        command: list of words.
        memory: `Memory`.

    Attributes:
        process: `subprocess.Popen`.
        pulse: its `Pulse`.
    """

    def __init__(self, command: Sequence[str], memory: Memory) -> None:
        self.pulse = Pulse(memory)
        reader, self._writer = os.pipe()
        self.process = start(command, pass_fds=[*self.pulse.options['pass_fds'], reader],
                             env={**self.pulse.options['env'], _TURN: str(reader)})
        os.close(reader)

    def begin(self) -> bool:
        """Lets it begin its work; returns whether it is still running."""
        self.pulse.begin()
        with contextlib.suppress(BrokenPipeError):
            os.write(self._writer, b'.')
        os.close(self._writer)
        return self.process.poll() is None

    def discard(self) -> None:
        """Ends it before it has begun."""
        os.close(self._writer)
        self.process.kill()
        self.process.wait()
        self.pulse.close()


def beat_for_parent() -> None:
    """Starts to send heartbeats to the parent, if the parent listens; from then on the parent expects them."""
    pipe = os.environ.pop(_VARIABLE, None)
    if pipe is not None:
        threading.Thread(target=_beat, args=(int(pipe),), name=_HEARTBEAT, daemon=True).start()


def is_supervised() -> bool:
    """Returns whether a parent restarts this process when it ends with TRY_AGAIN."""
    return _VARIABLE in os.environ or any(thread.name == _HEARTBEAT for thread in threading.enumerate())


def restart_in_words() -> str:
    """Returns what comes after an error that the restart of all workers can fix."""
    remedy = ('All restart (--max_restarts)' if is_supervised() else
              'Start the same command on all of them again, or give them --max_restarts')
    return f'{remedy}: training resumes from its newest checkpoint.'


def _beat(pipe):
    with contextlib.suppress(OSError):  # the parent has gone
        while True:
            os.write(pipe, b'.')
            time.sleep(_SECONDS_BETWEEN_BEATS)


class Pulse:
    """The heartbeats of one child.

    Args:
        memory: `Memory` for the child.

    Attributes:
        options: arguments of `subprocess.Popen` for the child.
    """

    def __init__(self, memory: Memory) -> None:
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        self._last, self._has_beaten = time.monotonic(), False
        self.options: dict[str, Any] = {
            'pass_fds': [self._writer, *memory.pieces],
            'env': {**os.environ, _VARIABLE: str(self._writer), _MEMORY: ' '.join(map(str, memory.pieces))}}

    def begin(self) -> None:
        """Counts the time until the first heartbeat from now on."""
        self._last = time.monotonic()

    def exceeded(self, silence_seconds: float, begin_seconds: float) -> float:
        """Returns the limit, in seconds, that the child has exceeded; 0: none.

        Args:
            silence_seconds: longest time between two heartbeats.
            begin_seconds: longest time until the first one; 0: any.
        """
        with contextlib.suppress(BlockingIOError):
            if os.read(self._reader, 4096):
                self._last, self._has_beaten = time.monotonic(), True
        limit = silence_seconds if self._has_beaten else begin_seconds
        return limit if time.monotonic() - self._last > limit else 0

    def close(self) -> None:
        """Stops listening."""
        os.close(self._reader)
        os.close(self._writer)
