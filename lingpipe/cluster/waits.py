"""Waits with a name and a limit. Warnings name the wait. At the limit, the process ends with a message.

::

    with Wait('the checkpoint logs/train/ckpt-3 to be read', 3600, 'train.checkpoint_timeout_seconds'): ...

    wait ── 30 s ── warning ── 30 s ── warning ── 60 s ── warning ── 120 s ── ... ── 3600 s ── message, exit code 75

A thread watches the time, because Python cannot interrupt a TensorFlow call that blocks.
"""

import ctypes
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, Self

from absl import logging

_FIRST_WARNING_SECONDS = 30.
_SECONDS_BETWEEN_LOOKS = 1.
_LONGEST_DELAY_OF_A_LOOK = 5.
_URGENT_SECONDS = 5.
TRY_AGAIN = 75  # EX_TEMPFAIL of sysexits.h: the same command resumes when restarted
START_AGAIN = 'Start the same command on all of them again: training resumes from its newest checkpoint.'
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)  # Slurm's --signal sends the last
_SET_SIGNAL_AT_DEATH_OF_PARENT = 1  # PR_SET_PDEATHSIG of prctl(2), which only Linux has
_libc = ctypes.CDLL(None)


def _paused_seconds(since: float, planned: float) -> float:
    """Return how many seconds this process was paused during a sleep, for example by Ctrl-Z."""
    excess = time.monotonic() - since - planned
    return excess if excess > _LONGEST_DELAY_OF_A_LOOK else 0.


def end_process(sentence: str) -> NoReturn:
    """Print a sentence, and end this process at once with the exit code `TRY_AGAIN`."""
    print(f'Error: {sentence}', file=sys.stderr, flush=True)
    os._exit(TRY_AGAIN)


class Wait:
    """A `with` block that may have to wait. A thread logs warnings, and ends the process at the limit.

    Args:
        what: what the process waits for, as a noun phrase.
        seconds: the limit; 0: no limit, only warnings.
        setting: text that names the setting of the limit, such as 'train.input_timeout_seconds=600', or ''.
        details: function that returns further sentences for each message, or ''.
        position: function that returns the progress of the work. A change restarts the clock, and None stops
            the clock. By default, the clock runs during the whole block.
        on_timeout: function that the thread calls at the limit, with the message; None: `end_process`.
        is_urgent: function that returns whether the process was asked to stop. If so, the limit is at most 5 seconds.
        first_warning_seconds: seconds before the first warning; None: 30. A quarter of the limit is used if shorter.
    """

    def __init__(self, what: str, seconds: float, setting: str = '', details: Callable[[], str] = str,
                 position: Callable[[], Any] = int, on_timeout: Callable[[str], Any] | None = None,
                 is_urgent: Callable[[], bool] = bool,
                 first_warning_seconds: float | None = None) -> None:
        self.what = what
        self._seconds, self._setting, self._details, self._position = seconds, setting, details, position
        self._on_timeout, self._is_urgent = on_timeout, is_urgent
        first = _FIRST_WARNING_SECONDS if first_warning_seconds is None else first_warning_seconds
        self._first_warning = min(first, seconds / 4 or first)
        self._since: float | None = None
        self._has_ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name=f'waiting for {what}', daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *unused_error: Any) -> None:
        self._has_ended.set()
        self._thread.join()

    def seconds_so_far(self) -> float:
        """Return the seconds that the current wait has lasted, or 0 if nothing waits."""
        since = self._since
        return 0. if since is None else time.monotonic() - since

    def _watch(self):
        known, next_warning = None, 0.
        while True:
            position = self._position()
            if position is None or position != known or self._since is None:
                known, next_warning = position, self._first_warning
                self._since = None if position is None else time.monotonic()
            waited = self.seconds_so_far()
            limit = self._limit()
            if waited >= limit:
                (self._on_timeout or end_process)(self._last_sentence(limit))
                if self._on_timeout is None:
                    return
                self._since = None  # what was waited for has come meanwhile, so the next wait begins
            if waited >= next_warning and self._since is not None:
                logging.warning('%s', self._warning(waited))
                next_warning = 2 * waited
            looked, pause = time.monotonic(), min(_SECONDS_BETWEEN_LOOKS, self._first_warning / 4)
            if self._has_ended.wait(pause):
                return None
            paused = _paused_seconds(looked, pause)  # limits do not count these
            self._since = None if self._since is None else self._since + paused

    def _limit(self):
        limit = self._seconds or math.inf
        return min(limit, _URGENT_SECONDS) if self._is_urgent() else limit

    def _warning(self, waited):
        setting = f' ({self._setting})' if self._setting else ''
        limit = f' If this takes {self._seconds:g} s, the process ends{setting}.' if self._seconds else ''
        return f'Still waiting for {self.what} after {waited:.3g} s.{self._more()}{limit}'

    def _last_sentence(self, limit):
        setting = f' ({self._setting})' if self._setting and limit == self._seconds else ''
        return (f'Waited {limit:g} s for {self.what}{setting}.{self._more()} See that its machine or file system '
                'answers, then run the same command again: training resumes from the newest checkpoint.')

    def _more(self):
        more = self._details()
        return f' {more}' if more else ''


def for_checkpoint(path: str, verb: str, seconds: float = 0, details: Callable[[], str] = str) -> Wait:
    """Return the `Wait` for a checkpoint. `verb` is 'written' or 'read'."""
    return for_files(f'checkpoint {path} to be {verb}', seconds, details)


def for_files(what: str, seconds: float, details: Callable[[], str] = str) -> Wait:
    """Return a `Wait` whose limit, `seconds`, is the value of the param `train.checkpoint_timeout_seconds`."""
    return Wait(what, seconds, f'train.checkpoint_timeout_seconds={seconds:g}', details)


def start(command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
    """Start a program in its own process group, which Ctrl+C does not reach.

    Call this from the main thread, because Linux kills the program when the calling thread ends.
    """
    parent = os.getpid()
    return subprocess.Popen(command, process_group=0, preexec_fn=lambda: die_with(parent), **options)


def die_with(parent: int) -> None:
    """Make Linux kill this process when the thread that started it ends. `parent` is the id of the parent process."""
    if hasattr(_libc, 'prctl'):
        _libc.prctl(_SET_SIGNAL_AT_DEATH_OF_PARENT, signal.SIGKILL)
    if os.getppid() != parent:  # the parent has ended meanwhile
        os._exit(1)
