"""Real trainings on loopback, struck once at most; seconds are not judged."""

import pathlib
import subprocess
import sys

_ROOT = pathlib.Path(__file__).parents[2]


def _rows(name, *arguments):
    """Returns the rows of a benchmark's table as lists of cells."""
    finished = subprocess.run(
        [sys.executable, f'benchmarks/{name}.py', *arguments], cwd=_ROOT, capture_output=True, text=True, timeout=400)
    assert finished.returncode == 0, finished.stderr[-2000:]
    lines = [line for line in finished.stdout.splitlines() if line.startswith('|')]
    return [[cell.strip() for cell in line.strip('|').split('|')] for line in lines[2:]]


def test_a_fault_is_told_with_what_follows_it():
    killed, = _rows('faults', '--clusters=pipeline', '--faults=chief killed')
    assert killed[:2] == ['pipeline', 'chief killed'] and killed[5] == 'goes on'
    assert 0 < float(killed[2]) < float(killed[3])


def test_a_soak_without_a_kill_ends_with_the_bits_of_an_undisturbed_training():
    (cluster, minutes, kills, restarts, _, lost, left, weights), = _rows('soak', '--cluster=pipeline', '--minutes=0')
    assert [cluster, minutes, kills, restarts, lost, left] == ['pipeline', '0', '0', '0', '0', '0']
    assert weights == 'right: the same bits as an undisturbed training'
