"""Ends a process that waits, for a pipe without a writer for instance."""

import contextlib
import os
import pathlib
import signal
import threading
from collections.abc import Iterator

_PERIOD = 0.1
_RUNNABLE = 'R'  # it computes, or would if a core were free


@contextlib.contextmanager
def limited(pid: int, seconds: float) -> Iterator[None]:
    """Ends a process with SIGALRM once it has waited for so long in this scope.

    A clock would measure other programs too: where twice as many programs compute as there are cores, each takes twice
    as long. So what counts is how often, of ten looks a second, no thread of the process computes or could. On a busy
    machine looks are late and fewer, never more: nothing ends that would not elsewhere.

    Args:
        pid: number of the process.
        seconds: how long it may wait.
    """
    done = threading.Event()
    watcher = threading.Thread(target=_watch, args=(pid, round(seconds / _PERIOD), done), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()


def _watch(pid, num_looks, done):
    while num_looks:
        if done.wait(_PERIOD):
            return
        num_looks -= _waits(pid)
    os.kill(pid, signal.SIGALRM)


def _waits(pid):
    """Returns whether no thread of a process can compute."""
    try:
        lines = [path.read_text() for path in pathlib.Path(f'/proc/{pid}/task').glob('*/stat')]
    except OSError:  # a thread has just ended
        return False
    return bool(lines) and not any(line.rpartition(')')[2].split()[0] == _RUNNABLE for line in lines)
