"""Each test imports a stand-in for TensorFlow in a process of its own, since an import happens once."""

import os
import pathlib
import subprocess
import sys
import textwrap

import pytest

ROOT = pathlib.Path(__file__).parents[2]
HARMLESS = """\
WARNING: All log messages before absl::InitializeLog() is called are written to STDERR
I0000 00:00:1795283570.188133    9432 port.cc:153] oneDNN custom operations are on.
E0000 00:00:1795283571.024916    9432 cuda_platform.cc:52] failed call to cuInit: INTERNAL: CUDA error
"""
OTHER = 'A module that was compiled using NumPy 1.x cannot be run in NumPy 2\n'


@pytest.fixture
def start(tmp_path):
    """Function that imports a stand-in which writes HARMLESS and OTHER; returns the process and its log level."""
    (tmp_path / 'tensorflow').mkdir()

    def run(then='', setup='', **environment):
        (tmp_path / 'tensorflow/__init__.py').write_text(textwrap.dedent(f"""\
            import logging, os, types
            os.write(2, {(HARMLESS + OTHER).encode()!r})
            config = types.SimpleNamespace(list_physical_devices=lambda kind: [])
            get_logger = logging.getLogger
            {then}
            """))
        program = f"""\
from lingpipe.command_line import startup
startup._NVIDIA_DRIVER = '/nowhere'
{setup}
startup.import_tensorflow()
import os, sys
os.write(2, b'afterwards')
print(os.environ['TF_CPP_MIN_LOG_LEVEL'])"""
        inherited = {name: value for name, value in os.environ.items() if name != 'TF_CPP_MIN_LOG_LEVEL'}
        return subprocess.run(
            [sys.executable, '-c', program], env={**inherited, 'PYTHONPATH': f'{tmp_path}:{ROOT}', **environment},
            capture_output=True, text=True)

    return run


def test_lines_of_the_log_are_held_back_and_others_and_later_ones_are_not(start):
    finished = start()
    assert (finished.stdout, finished.stderr) == ('1\n', OTHER + 'afterwards')


def test_a_cluster_shows_no_lines_of_connections_nor_of_traced_saves(start):
    finished = start(
        then="import atexit; atexit.register(lambda: [logging.warning(line) for line in ('MultiDeviceSaver.save', 'else')])",
        setup='import functools; startup.import_tensorflow = functools.partial('
              'startup.import_tensorflow, shows_warnings=False)')
    assert (finished.stdout, finished.stderr) == ('3\n', OTHER + 'afterwardsWARNING:root:else\n')


def test_packages_that_only_plots_of_keras_need_are_not_imported_with_it(start):
    finished = start(then="import sys; print(sys.modules['matplotlib'], sys.modules['sklearn'])",
                     setup="import atexit, sys; atexit.register(lambda: print({'matplotlib', 'sklearn'} & set(sys.modules)))")
    assert finished.stdout == 'None None\n1\nset()\n'


def test_all_lines_are_shown_when_the_import_fails(start):
    finished = start(then="raise ImportError('no library')")
    assert finished.returncode != 0
    assert finished.stderr.startswith(HARMLESS + OTHER)
    assert 'ImportError: no library' in finished.stderr


def test_a_process_that_is_killed_in_the_import_says_so(start):
    finished = start(then='os.abort()')
    assert finished.returncode != 0
    assert 'Aborted' in finished.stderr and 'tensorflow/__init__.py' in finished.stderr
