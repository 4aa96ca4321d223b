"""Child processes, which do not outlive their parent."""

import ctypes
import os
import signal
import subprocess
from collections.abc import Sequence
from typing import Any

TRY_AGAIN = 75  # EX_TEMPFAIL of sysexits.h: the same command resumes when restarted
START_AGAIN = 'Start the same command on all of them again: training resumes from its newest checkpoint.'
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)  # Slurm's --signal sends the last
_SET_SIGNAL_AT_DEATH_OF_PARENT = 1  # PR_SET_PDEATHSIG of prctl(2), which only Linux has
_libc = ctypes.CDLL(None)


def start(command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
    """Start a program in its own process group: Ctrl+C reaches only the parent, which passes it on.

    Call it from the main thread: Linux kills the child when the thread that started it ends.
    """
    parent = os.getpid()
    return subprocess.Popen(command, process_group=0, preexec_fn=lambda: die_with(parent), **options)


def die_with(parent: int) -> None:
    """Make the system kill this process when the thread of the parent that started it ends."""
    if hasattr(_libc, 'prctl'):
        _libc.prctl(_SET_SIGNAL_AT_DEATH_OF_PARENT, signal.SIGKILL)
    if os.getppid() != parent:  # the parent has ended meanwhile
        os._exit(1)
