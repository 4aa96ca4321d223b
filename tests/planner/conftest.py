"""The stack of dense layers of `stacks.py`, as a fixture."""

import importlib.util
import pathlib

import pytest

_spec = importlib.util.spec_from_file_location('stacks', pathlib.Path(__file__).with_name('stacks.py'))
_stacks = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_stacks)


@pytest.fixture
def stacks():
    return _stacks
