"""Benchmarks as modules: several of them define flags of one name, so none stays imported after its test."""

import contextlib
import importlib
import json
import os
import pathlib
import subprocess
import sys

import pytest
from absl import flags
from absl.testing import flagsaver

from lingpipe.cluster import waits
from lingpipe.layers import amoebanet, resnet
from tests import forked_programs

_ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture
def load_benchmark(monkeypatch):
    """Return a function that imports a benchmark, such as 'speed.bubble', and parses arguments for it and its
    processes."""
    was_parsed = flags.FLAGS.is_parsed()
    for name in _imported():
        monkeypatch.delitem(sys.modules, name)
    with _without_flags_of_the_command_line(), flagsaver.flagsaver():

        def load(name, *arguments):
            module = importlib.import_module(f'benchmarks.{name}')
            monkeypatch.setattr(sys, 'argv', [name, *arguments])
            flags.FLAGS(sys.argv, known_only=True)
            return module

        yield load
    if not was_parsed:
        flags.FLAGS.unparse_flags()
    for name in _imported():
        del sys.modules[name]


@contextlib.contextmanager
def _without_flags_of_the_command_line():
    """Benchmarks have flags of the same names, and other tests of this process may have imported its modules."""
    found = [(module, flag) for module, defined in flags.FLAGS.flags_by_module_dict().items()
             if module.startswith('lingpipe.command_line.') for flag in defined]
    for _, flag in found:
        delattr(flags.FLAGS, flag.name)
    yield
    for module, flag in found:
        flags.FLAGS[flag.name] = flag
        flags.FLAGS.register_flag_by_module(module, flag)


def _imported():
    """Return the names of all modules and folders of benchmarks that are imported."""
    return [name for name in sys.modules if name.split('.')[0] == 'benchmarks']


@pytest.fixture
def load_forking(load_benchmark, monkeypatch):
    """Return what `load_benchmark` does, for a benchmark whose processes are forked."""
    monkeypatch.setattr(waits, 'start', forked_programs.start_benchmark)
    return load_benchmark


@pytest.fixture
def fork_commands(monkeypatch):
    """Return a function that lets commands be forked which a benchmark runs to their end."""
    def fork():
        def run(command, *, env=None, check=False, **unused):
            environment = {'PYTHONPATH': str(_ROOT), **(env or {})}
            program = forked_programs.ForkedProgram(command[1:], environment, os.getcwd())
            done = subprocess.CompletedProcess(command, None, *program.communicate())
            done.returncode = program.returncode
            assert not check or done.returncode == 0, done.stderr
            return done

        monkeypatch.setattr(subprocess, 'run', run)

    return fork


@pytest.fixture
def short_amoebanet(monkeypatch):
    """Of an AmoebaNet a cell at each end is left, and the head: paths are dropped in cells, the more the deeper, and
    the head drops out."""
    whole = amoebanet.amoebanet_layers

    def short(*arguments, **fields):
        stem, first, *_, last, head = whole(*arguments, **fields)
        return [stem, first, last, head]

    monkeypatch.setattr(amoebanet, 'amoebanet_layers', short)


@pytest.fixture
def short_resnet(monkeypatch):
    """Of a ResNet only the stem, with its batch norm, and the head are trained."""
    whole = resnet.resnet_layers

    def short(*arguments, **fields):
        stem, *_, head = whole(*arguments, **fields)
        return [stem, head]

    monkeypatch.setattr(resnet, 'resnet_layers', short)


class _ProcessHere:
    """Stands in for `common.Process`: the generator works in this process, where TensorFlow is there already."""

    def __init__(self, function, *arguments, num_cores=None, environment=None):
        self._values = function(*arguments)

    def ask(self):
        pass

    def answer(self):
        return json.loads(json.dumps(next(self._values)))

    next = answer

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self._values.close()


@pytest.fixture
def run_benchmark(load_benchmark, monkeypatch, capsys):
    """Return a function that runs a benchmark here, with all that has a process of its own, and gives what it printed.

    `test_benchmarks.py` runs commands, and benchmarks with processes of their own.
    """
    cores = os.sched_getaffinity(0)

    def run(name, *arguments):
        module = load_benchmark(name, *arguments)
        common = sys.modules['benchmarks.support.common']
        monkeypatch.setattr(common, 'Process', _ProcessHere)
        module.main([])
        printed = capsys.readouterr().out
        assert 'Machine: ' in printed
        return printed

    yield run
    os.sched_setaffinity(0, cores)


@pytest.fixture(scope='session')
def table():
    """Function that returns the rows of the only Markdown table in a text as dictionaries."""

    def read(text):
        header, _, *rows = [[cell.strip() for cell in line.strip('|').split('|')]
                            for line in text.splitlines() if line.startswith('|')]
        return [dict(zip(header, row)) for row in rows]

    return read
