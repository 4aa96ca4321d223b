"""Graceful stopping: after SIGTERM or SIGINT the current step ends, so that a checkpoint can be written."""

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Interruption:
    """Whether the program was asked to stop.

    Args:
        stop: function to call when it is asked to.

    Attributes:
        reason: name of the signal, or another reason; None if nothing asked.
    """

    def __init__(self, stop: Callable = lambda: None) -> None:
        self._stop = stop
        self.reason = None

    def __bool__(self):
        return self.reason is not None

    def ask(self, reason: Any) -> None:
        """Asks the program to stop, from any thread."""
        self.reason = self.reason or reason
        self._stop()


@contextlib.contextmanager
def catch_signals(stop: Callable = lambda: None) -> Iterator[Any]:
    """Inside this scope the first SIGTERM or SIGINT only sets the `Interruption`; a second one has its usual effect.

    Python runs the handler of a signal between two instructions of the main thread, but the main thread may be inside
    TensorFlow for minutes. So another thread calls `stop` at once::

        signal ─┬─> pipe ─> watching thread ─> stop()                       at once
                └─> handler in the main thread ─> Interruption is set       when TensorFlow returns

    Args:
        stop: function to call from another thread as soon as a signal arrives.

    Yields:
        `Interruption`.
    """
    interruption = Interruption(stop)
    previous = {number: signal.getsignal(number) for number in _SIGNALS}

    def note(number, unused_frame):
        interruption.reason = signal.Signals(number).name
        signal.signal(number, previous[number])

    with _watch(stop):
        for number in previous:
            signal.signal(number, note)
        try:
            yield interruption
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)


@contextlib.contextmanager
def _watch(stop):
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    thread = threading.Thread(target=_call_at_signals, args=(reader, stop), name='signals', daemon=True)
    thread.start()
    previous = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(previous)
        os.close(writer)  # ends the thread
        thread.join()
        os.close(reader)


def _call_at_signals(reader, stop):
    while number := os.read(reader, 1):
        if number[0] in _SIGNALS:
            stop()
