"""Graceful stop by signals. The current step ends before the program stops."""

import contextlib
import ctypes
import os
import signal
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from lingpipe.cluster import waits

_REPEATED_BY_USERS = (signal.SIGTERM, signal.SIGINT)  # a closing terminal and its shell both send SIGHUP
_SECONDS_OF_ONE_REQUEST = 1.  # a terminal and a launcher may both send the same Ctrl-C
_Handler = Callable[[int, types.FrameType | None], Any] | int | None  # what `signal.getsignal` returns


class Interruption:
    """A request to stop the program. `stop` is called when the request comes.

    Attributes:
        reason: name of the signal, or another reason; None before any request.
    """

    def __init__(self, stop: Callable = lambda: None) -> None:
        self._stop = stop
        self.reason: str | None = None

    def __bool__(self) -> bool:
        return self.reason is not None

    def ask(self, reason: Any) -> None:
        """Ask the program to stop, from any thread."""
        self.reason = self.reason or reason
        self._stop()

    def end_process(self) -> NoReturn:
        """End this process at once, from any thread."""
        if self.is_by_user:
            end_by(signal.SIGINT)
        sys.stdout.flush()
        os._exit(waits.TRY_AGAIN)

    @property
    def is_by_user(self) -> bool:
        """Whether Ctrl-C asked to stop."""
        return self.reason == signal.SIGINT.name


@contextlib.contextmanager
def catch_signals(stop: Callable = lambda: None) -> Iterator[Any]:
    """Yield an `Interruption` that the first SIGTERM, SIGINT, SIGHUP or SIGUSR1 sets.

    A second SIGTERM or SIGINT has its usual effect. Python runs no handler while the main thread is inside TensorFlow.
    Another thread therefore watches the signals::

        signal ─┬─> pipe ─> watching thread ─> Interruption is set, stop()    at once
                └─> handler in the main thread ─> Interruption is set         when TensorFlow returns
    """
    interruption = Interruption(stop)
    handlers: dict[int, _Handler] = {number: signal.getsignal(number) for number in waits.STOP_SIGNALS}
    # An ignored signal, such as SIGHUP under nohup, stays ignored.
    handlers = {number: handler for number, handler in handlers.items() if handler is not signal.SIG_IGN}
    times: dict[int, float] = {}

    def note(number: int, frame: types.FrameType | None) -> None:
        interruption.reason = interruption.reason or signal.Signals(number).name
        handler = handlers[number]
        if _is_again(number, times) and callable(handler):
            handler(number, frame)

    with _watch(interruption, handlers):
        for number in handlers:
            signal.signal(number, note)
        try:
            yield interruption
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)


def end_at_signals() -> None:
    """Let SIGTERM, SIGHUP and SIGUSR1 end this process with exit code TRY_AGAIN. `catch_signals` overrides this."""
    for number in waits.STOP_SIGNALS:
        if signal.getsignal(number) is signal.SIG_DFL and number != signal.SIGINT:
            signal.signal(number, _end_to_resume)


def _end_to_resume(number: int, unused_frame: types.FrameType | None) -> NoReturn:
    with contextlib.suppress(OSError):
        print(f'Stopped by {signal.Signals(number).name}. Run the same command again to resume.', flush=True)
    os._exit(waits.TRY_AGAIN)


def end_by(number: int) -> NoReturn:
    """End this process by a signal, from any thread."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    ctypes.pythonapi.PyOS_setsig(number, None)  # `signal.signal` works in the main thread only
    signal.raise_signal(number)  # after SIGINT, a shell loop around this command ends too
    os._exit(128 + number)  # the first process of a container cannot end itself by a signal


def _is_again(number: int, times: dict[int, float]) -> bool:
    """Return whether a user repeats a signal."""
    now = time.monotonic()
    # `times` has the time at which each signal came for the first time.
    return number in _REPEATED_BY_USERS and now - times.setdefault(number, now) > _SECONDS_OF_ONE_REQUEST


@contextlib.contextmanager
def _watch(interruption: Interruption, handlers: dict[int, _Handler]) -> Iterator[None]:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    arguments = reader, interruption, handlers
    thread = threading.Thread(target=_act_at_signals, args=arguments, name='signals', daemon=True)
    thread.start()
    previous = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(previous)
        os.close(writer)  # ends the thread
        thread.join()
        os.close(reader)


def _act_at_signals(reader: int, interruption: Interruption, handlers: dict[int, _Handler]) -> None:
    times: dict[int, float] = {}
    while read := os.read(reader, 1):
        number = read[0]
        if number not in handlers:
            continue
        if _is_again(number, times):
            if handlers[number] is _end_to_resume:
                _end_to_resume(number, None)
            if handlers[number] is signal.SIG_DFL:
                end_by(number)
        interruption.ask(signal.Signals(number).name)
