"""What standard streams do when nobody reads them, or when their disk is full."""

import signal
import subprocess
import sys

import pytest

_PROGRAM = """
import sys
from lingpipe.command_line import startup
startup.outlive_readers()
for stream in (sys.stdout, sys.stderr):
    for line in range(3):
        print(line, file=stream, flush=line == 1)
        print('x' * 100_000, file=stream)
"""


@pytest.mark.parametrize('redirection', [
    '>/dev/full 2>/dev/full', '>/dev/null 2>/dev/full', '2>&1 | true', '2>&1 | head -1'])
def test_output_that_nobody_takes_ends_nothing(redirection):
    script = f'set -o pipefail; "$0" -c "$1" {redirection}'
    assert subprocess.run(['bash', '-c', script, sys.executable, _PROGRAM]).returncode == 0


def test_a_closed_pipe_ends_quietly_what_only_prints():
    script = 'set -o pipefail; "$0" -m lingpipe --help | true; exit ${PIPESTATUS[0]}'
    ended = subprocess.run(['bash', '-c', script, sys.executable], capture_output=True)
    assert (ended.returncode, ended.stderr) == (128 + signal.SIGPIPE, b'')
