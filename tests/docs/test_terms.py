"""The words of terms.md are used: its wrong phrases are in no page, docstring, help text or error message."""

import ast
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[2]
_ROWS = re.findall(r'^\| (.+) \| (.+) \|$', (ROOT / 'tests/docs/terms.md').read_text('utf-8'), re.MULTILINE)[1:]
WRONG = {phrase: say for say, phrases in _ROWS for phrase in phrases.split(', ')}
_WRONG = re.compile(rf'(?<![\w-])({"|".join(map(re.escape, WRONG))})(?![\w-])', re.IGNORECASE)
PAGES = [*sorted((ROOT / 'docs').rglob('*.md')), ROOT / 'README.md', ROOT / 'CONTRIBUTING.md']
MODULES = sorted((ROOT / 'lingpipe').rglob('*.py'))
_THIRD_PERSON = {'Adds', 'Builds', 'Calls', 'Makes', 'Raises', 'Reads', 'Returns', 'Runs', 'Waits', 'Writes', 'Yields'}
_CODE = re.compile(r'^ *```.*?^ *```|`[^`\n]+`|^    .*?$', re.DOTALL | re.MULTILINE)


def found(text):
    """Return the wrong phrases of a text, each with what to say."""
    return [f'{phrase!r}: say {WRONG[phrase.lower()]}' for phrase in _WRONG.findall(' '.join(text.split()))]


def texts(tree):
    """Yield pairs of a line and a text: the first paragraph of each docstring, and every other string with a space."""
    docstrings = {}
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node):
            docstrings[node.body[0].value] = ast.get_docstring(node).split('\n\n')[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and ' ' in node.value:
            yield node.lineno, docstrings.get(node, node.value)


@pytest.mark.parametrize('page', PAGES, ids=lambda page: page.stem)
def test_a_page_uses_the_terms(page):
    assert not found(_CODE.sub('', page.read_text('utf-8')))


def test_docstrings_and_messages_use_the_terms():
    wrong = [(f'{path.relative_to(ROOT)}:{line}', phrases) for path in MODULES
             for line, text in texts(ast.parse(path.read_text('utf-8'))) if (phrases := found(text))]
    assert not wrong, '\n'.join(map(str, wrong))


def test_docstrings_of_functions_begin_with_an_imperative():
    functions = [(path, node) for path in MODULES for node in ast.walk(ast.parse(path.read_text('utf-8')))
                 if isinstance(node, ast.FunctionDef)]
    assert not [f'{path.relative_to(ROOT)}:{node.lineno}' for path, node in functions
                if (ast.get_docstring(node) or '').split(' ')[0] in _THIRD_PERSON]


def test_the_list_finds_a_phrase_across_lines():
    assert found('The gradients are those\n  of the mean.') == ["'those of': say " + WRONG['those of']]
    assert not found('There is nothing to say; it is no timeout.')
