"""Output that lets a program continue when nobody reads it, or when its disk is full."""

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from typing import Any


def outlive_readers() -> None:
    """Let this process continue when nobody reads its output: the results of hours are written elsewhere."""
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # as Python does, but not `lingpipe` in its other modes
    sys.stdout, sys.stderr = _Unfailing(sys.stdout), _Unfailing(sys.stderr)


class _Unfailing:
    """A stream that drops what cannot be written: its reader or terminal has gone, or the disk is full."""

    def __init__(self, stream):
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with self._dropping():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with self._dropping():
            self._stream.flush()

    @contextlib.contextmanager
    def _dropping(self) -> Iterator[None]:
        try:
            yield
        except OSError:
            with contextlib.suppress(OSError):
                self._discard_buffer()

    def _discard_buffer(self):
        """Flush to nowhere: what stays in the buffer would fail again, at the latest when Python ends."""
        number = self._stream.fileno()
        kept, nowhere = os.dup(number), os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(nowhere, number)
            self._stream.flush()
        finally:
            os.dup2(kept, number)
            os.close(kept)
            os.close(nowhere)
