"""Pages, docstrings, help texts and errors pass proselint, to whose checks terms.md adds this project's terms."""

import ast
import itertools
import pathlib
import re

import pytest
from proselint.checks import __register__ as ALL_CHECKS
from proselint.registry.checks import Check, CheckFlags
from proselint.registry.checks.types import PreferredFormsSimple

ROOT = pathlib.Path(__file__).parents[2]
_ROWS = re.findall(r'^\| (.+) \| (.+) \|$', (ROOT / 'tests/docs/terms.md').read_text('utf-8'), re.MULTILINE)[1:]
WRONG = {phrase.lower(): say for say, phrases in _ROWS for phrase in phrases.split(', ')}
TERMS = Check(PreferredFormsSimple(WRONG), path='terms.md', message='say {}', flags=CheckFlags(allow_quotes=True))
# Not on: quotes and dashes are ASCII, "7's" is an owner, and "multiply-add" is a noun.
_OFF = 'typography', 'dates_times', 'restricted', 'misc.phrasal_adjectives.ly'
CHECKS = [check for check in ALL_CHECKS if not any(map(check.matches_partial, _OFF))] + [TERMS]
PAGES = [*sorted((ROOT / 'docs').rglob('*.md')), ROOT / 'README.md', ROOT / 'CONTRIBUTING.md']
MODULES = sorted((ROOT / 'lingpipe').rglob('*.py'))
_THIRD_PERSON = {'Adds', 'Builds', 'Calls', 'Makes', 'Raises', 'Reads', 'Returns', 'Runs', 'Waits', 'Writes', 'Yields'}
_BLOCK = re.compile(r'^ *```.*?^ *```|^    .*?$', re.DOTALL | re.MULTILINE)
_CODE = re.compile(r'`[^`\n]+`')


def found(text, checks):
    """Return what checks report in the paragraphs of a text, each with its place in the paragraph."""
    paragraphs = [f'\n{" ".join(_CODE.sub("`code`", paragraph).split())}\n' for paragraph in text.split('\n\n')]
    return [f'{paragraph[slice(*result.span)].strip()!r}: {result.message} ({result.check_path})'
            for paragraph, check in itertools.product(paragraphs, checks)
            for result in check.check_with_flags(paragraph)]


def texts(tree):
    """Yield (line, text, checks) of the first paragraph of each docstring, and of every other string with a space."""
    docstrings = {}
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node):
            docstrings[node.body[0].value] = ast.get_docstring(node).split('\n\n')[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and ' ' in node.value:
            yield node.lineno, docstrings.get(node, node.value), CHECKS if node in docstrings else [TERMS]


@pytest.mark.parametrize('page', PAGES, ids=lambda page: page.stem)
def test_a_page_uses_the_terms(page):
    assert not found(_BLOCK.sub('', page.read_text('utf-8')), CHECKS)


def test_docstrings_and_messages_use_the_terms():
    wrong = [(f'{path.relative_to(ROOT)}:{line}', phrases) for path in MODULES
             for line, text, checks in texts(ast.parse(path.read_text('utf-8'))) if (phrases := found(text, checks))]
    assert not wrong, '\n'.join(map(str, wrong))


def test_docstrings_of_functions_begin_with_an_imperative():
    functions = [(path, node) for path in MODULES for node in ast.walk(ast.parse(path.read_text('utf-8')))
                 if isinstance(node, ast.FunctionDef)]
    assert not [f'{path.relative_to(ROOT)}:{node.lineno}' for path, node in functions
                if (ast.get_docstring(node) or '').split(' ')[0] in _THIRD_PERSON]


def test_the_list_finds_a_phrase_across_lines():
    assert found('The gradients are those\n  of the mean.', [TERMS]) == [f"'those of': say {WRONG['those of']} (terms.md)"]
    assert not found('There is nothing to say; it is no timeout.', [TERMS])


def test_proselint_finds_a_repeated_word():
    assert found('The pipeline is is full.', CHECKS)
