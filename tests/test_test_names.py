"""Names of tests are short enough to be read in a line of a report."""

import ast
import pathlib

_TESTS = pathlib.Path(__file__).parent
_MAX_LENGTH = 69


def test_names_of_tests_are_shorter_than_70_characters():
    names = [(path.relative_to(_TESTS), node.name) for path in sorted(_TESTS.rglob('test_*.py'))
             for node in ast.walk(ast.parse(path.read_text('utf-8')))
             if isinstance(node, ast.FunctionDef) and node.name.startswith('test_')]
    assert names
    assert not [f'{path}::{name} has {len(name)} characters' for path, name in names if len(name) > _MAX_LENGTH]
