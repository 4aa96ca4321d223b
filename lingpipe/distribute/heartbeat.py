"""Signs of life of a child process, by which its parent notices that it was stopped or hangs in one call.

    child      a thread writes a byte a second ──> pipe
    parent     Pulse.is_missing(seconds) <──────── pipe
"""

import contextlib
import os
import threading
import time

_VARIABLE = 'LINGPIPE_HEARTBEAT'
_SECONDS_BETWEEN_BEATS = 1


def beat_for_parent():
    """Begins to give signs of life, where the parent listens for them; from then on it expects them."""
    pipe = os.environ.pop(_VARIABLE, None)
    if pipe is not None:
        threading.Thread(target=_beat, args=(int(pipe),), name='heartbeat', daemon=True).start()


def _beat(pipe):
    with contextlib.suppress(OSError):  # the parent has gone
        while True:
            os.write(pipe, b'.')
            time.sleep(_SECONDS_BETWEEN_BEATS)


class Pulse:
    """The signs of life of one child.

    Attributes:
        options: arguments of `subprocess.Popen` for the child.
    """

    def __init__(self):
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        self._last = None
        self.options = {'pass_fds': [self._writer], 'env': {**os.environ, _VARIABLE: str(self._writer)}}

    def is_missing(self, seconds):
        """Says whether the child gave a sign once, but none in so many seconds."""
        with contextlib.suppress(BlockingIOError):
            if os.read(self._reader, 4096):
                self._last = time.monotonic()
        return self._last is not None and time.monotonic() - self._last > seconds

    def close(self):
        """Ends listening."""
        os.close(self._reader)
        os.close(self._writer)
