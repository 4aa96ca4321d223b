"""What standard streams do when nobody is there, or when what they print is not text."""

import signal
import subprocess
import sys

import pytest

_PROGRAM = """
import os, sys
from lingpipe.command_line import startup
startup.open_missing()
startup.allow_all_characters()
startup.outlive_readers()
assert os.open(os.devnull, os.O_RDONLY) > 2
for stream in (sys.stdout, sys.stderr):
    for line in range(3):
        print('caf\\udce9', line, file=stream, flush=line == 1)
        print('x' * 100_000, file=stream)
"""


@pytest.mark.parametrize('redirection', [
    '<&- >/dev/null 2>&-', '>&- 2>/dev/null', '<&- >&- 2>&-', '>/dev/full 2>/dev/full', '2>&1 | true', '2>&1 | head -1'])
def test_output_that_nobody_takes_ends_nothing(redirection):
    script = f'set -o pipefail; "$0" -c "$1" {redirection}'
    assert subprocess.run(['bash', '-c', script, sys.executable, _PROGRAM]).returncode == 0


def test_bytes_that_are_no_text_are_printed_as_numbers():
    ended = subprocess.run(
        [sys.executable, '-c', _PROGRAM], capture_output=True, env={'PYTHONIOENCODING': 'utf-8:strict'})
    assert ended.returncode == 0
    assert ended.stdout.startswith(b'caf\\udce9 0\nxxx') and len(ended.stdout.splitlines()) == 6
    assert ended.stderr == ended.stdout


def test_a_closed_pipe_ends_quietly_what_only_prints():
    script = 'set -o pipefail; "$0" -m lingpipe --help | true; exit ${PIPESTATUS[0]}'
    ended = subprocess.run(['bash', '-c', script, sys.executable], capture_output=True)
    assert (ended.returncode, ended.stderr) == (128 + signal.SIGPIPE, b'')
