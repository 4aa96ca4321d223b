"""Runs commands in processes that are forked, and strikes them."""

import json
import os
import pathlib
import signal
import time
from typing import NamedTuple

from tests import forked_programs

_ROOT = pathlib.Path(__file__).parents[2]
_PROGRAM = pathlib.Path(__file__).with_name('struck_command.py')
_MOST_SECONDS = 180


class Strike(NamedTuple):
    """What strikes a process, and when.

    Attributes:
        fault: one of `strikes.FAULTS`.
        moment: one of `strikes.MOMENTS`.
        number: how often the moment has come then.
        limit: bytes that a file may have on a full disk; milliseconds of a pause.
    """

    fault: str
    moment: str
    number: int
    limit: int = 0


class Result(NamedTuple):
    """How a process ended.

    Attributes:
        code: as `subprocess` gives it.
        output: what it printed, as far as somebody read it.
        is_struck: whether the moment of the strike came.
        position: example at which it began to train, or None.
    """

    code: int
    output: str
    is_struck: bool
    position: int


def started(words, folder, notes, strike=None):
    """Start a command; return the `ForkedProgram`."""
    environment = {'PYTHONPATH': str(_ROOT), 'TF_CPP_MIN_LOG_LEVEL': '3', 'POSITION': f'{notes}/position'}
    for note in pathlib.Path(notes).iterdir():
        note.unlink()
    if strike:
        environment['STRIKE'] = json.dumps({**strike._asdict(), 'folder': str(folder), 'note': f'{notes}/struck'})
    return forked_programs.ForkedProgram([_PROGRAM, *words], environment, folder, has_one_output=True)


def run(words, folder, notes, strike=None, during_pause=lambda: None):
    """Run a command to its end; return its `Result`."""
    program = started(words, folder, notes, strike)
    if strike and strike.fault == 'STOP' and _await_stop(program):
        during_pause()
        time.sleep(strike.limit / 1000)
        program.send_signal(signal.SIGCONT)
    return ended(program, notes)


def ended(program, notes):
    """Wait for the end of a command; return its `Result`."""
    output, _ = program.communicate(_MOST_SECONDS)
    position = pathlib.Path(notes, 'position')
    return Result(program.returncode, output, os.path.exists(f'{notes}/struck'),
                  int(position.read_text()) if position.exists() else None)


def _await_stop(program):
    """Wait until a program is stopped or has ended; return whether it is stopped."""
    while program.poll() is None:
        if _state(program.pid) == 'T':
            return True
        time.sleep(0.01)
    return False


def _state(process):
    try:
        return pathlib.Path(f'/proc/{process}/stat').read_text().rpartition(')')[2].split()[0]
    except OSError:
        return ''
