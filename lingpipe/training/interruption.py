"""Stopping politely: SIGTERM and SIGINT let the current steps end, so that a checkpoint can be written."""

import contextlib
import signal


class Interruption:
    """Whether somebody has asked the program to stop.

    Attributes:
        signal_name: name of the signal, or None.
    """

    def __init__(self):
        self.signal_name = None

    def __bool__(self):
        return self.signal_name is not None


@contextlib.contextmanager
def catch_signals():
    """Inside this scope the first SIGTERM or SIGINT only sets the `Interruption`; a second one has its usual effect.

    Yields:
        `Interruption`.
    """
    interruption = Interruption()
    previous = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def note(number, unused_frame):
        interruption.signal_name = signal.Signals(number).name
        signal.signal(number, previous[number])

    for number in previous:
        signal.signal(number, note)
    try:
        yield interruption
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
