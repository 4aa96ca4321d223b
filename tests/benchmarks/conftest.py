"""Benchmarks as modules: several of them define flags of one name, so none stays imported after its test."""

import importlib
import pathlib
import sys

import pytest
from absl import flags
from absl.testing import flagsaver

_FOLDER = pathlib.Path(__file__).parents[2] / 'benchmarks'


@pytest.fixture
def load_benchmark(monkeypatch):
    """Returns a function that imports a benchmark and parses arguments for it and for the processes that it starts."""
    modules, was_parsed = set(sys.modules), flags.FLAGS.is_parsed()
    monkeypatch.syspath_prepend(_FOLDER)
    with flagsaver.flagsaver():

        def load(name, *arguments):
            module = importlib.import_module(name)
            monkeypatch.setattr(sys, 'argv', [name, *arguments])
            flags.FLAGS(sys.argv, known_only=True)
            return module

        yield load
    if not was_parsed:
        flags.FLAGS.unparse_flags()
    for name in set(sys.modules) - modules:
        if str(getattr(sys.modules[name], '__file__', None)).startswith(str(_FOLDER)):
            del sys.modules[name]
