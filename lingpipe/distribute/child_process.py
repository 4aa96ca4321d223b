"""Child processes that do not outlive the process that started them, even when that is killed."""

import ctypes
import os
import signal
import subprocess

_SET_SIGNAL_AT_DEATH_OF_PARENT = 1  # PR_SET_PDEATHSIG of prctl(2), which only Linux has
_libc = ctypes.CDLL(None)


def start(command, **options):
    """Starts a program in a process group of its own, so that Ctrl+C in a terminal reaches its parent only, which passes it on.

    Call it from the main thread: Linux kills the child when the thread that started it ends.

    Args:
        command: list of words.
        options: further arguments of `subprocess.Popen`.

    Returns:
        `subprocess.Popen`.
    """
    parent = os.getpid()
    return subprocess.Popen(command, process_group=0, preexec_fn=lambda: _die_with(parent), **options)


def _die_with(parent):
    if hasattr(_libc, 'prctl'):
        _libc.prctl(_SET_SIGNAL_AT_DEATH_OF_PARENT, signal.SIGKILL)
    if os.getppid() != parent:  # it died in between
        os._exit(1)


def ending(code):
    """Returns in words how a process ended, from its return code as `subprocess` gives it."""
    return f'was ended by {_signal_name(-code)}' if code < 0 else f'ended with exit code {code}'


def exit_code(code):
    """Returns the exit code, as shells give it, of a process with a return code as `subprocess` gives it."""
    return 128 - code if code < 0 else code


def _signal_name(number):
    try:
        return signal.Signals(number).name
    except ValueError:
        return f'signal {number}'
