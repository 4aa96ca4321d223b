"""Lines, modules and words of this project beside its aims, and how its lines are divided.

    python -m benchmarks.weight

Files are parsed, not imported. Docs are the pages below `docs/` in Markdown, without README. A function's lines are
those from its `def` to its end, with its docstring.
"""

import ast
import io
import pathlib
import statistics
import tokenize
from typing import NamedTuple

from lingpipe import wording

ROOT = pathlib.Path(__file__).resolve().parents[1]
AIMS = {'lingpipe': (31_000, 190), 'benchmarks': (6_000, 50), 'tests': (27_000, '')}  # lines, modules
DOCS_AIM = (32_000, 26)  # words, pages
_HEADER = ['package', 'lines', 'at most', 'modules', 'at most', 'median module', 'median function', 'docstrings',
           'comments']
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


class Module(NamedTuple):
    """What one file holds.

    Attributes:
        lines: number of its lines.
        functions: list of the lines of each function.
        docstrings: number of lines of docstrings.
        comments: number of lines that have a comment.
    """

    lines: int
    functions: list
    docstrings: int
    comments: int


def measure(source):
    """Return the `Module` of the text of a Python file."""
    nodes = list(ast.walk(ast.parse(source)))
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return Module(
        lines=len(source.splitlines()),
        functions=[_length(node) for node in nodes if isinstance(node, _FUNCTIONS)],
        docstrings=sum(_length(node.body[0]) for node in nodes if _has_docstring(node)),
        comments=sum(token.type == tokenize.COMMENT for token in tokens))


def _length(node):
    return node.end_lineno - node.lineno + 1


def _has_docstring(node):
    return isinstance(node, (ast.Module, ast.ClassDef, *_FUNCTIONS)) and ast.get_docstring(node) is not None


def _modules(folder):
    """Return the list of `Module`s below a folder."""
    return [measure(path.read_text(encoding='utf-8')) for path in sorted(folder.rglob('*.py'))]


def _packages(folder):
    """Return a dictionary from the name of each package of a folder to its `Module`s; files beside them come first."""
    beside = [measure(path.read_text(encoding='utf-8')) for path in sorted(folder.glob('*.py'))]
    packages = {f'{folder.name}/{child.name}': _modules(child) for child in sorted(folder.iterdir()) if child.is_dir()}
    return {f'{folder.name}/*.py': beside, **packages}


def _row(name, modules, aims=('', '')):
    lines = sum(module.lines for module in modules)
    functions = [length for module in modules for length in module.functions]
    return [name, lines, aims[0], len(modules), aims[1], f'{statistics.median(module.lines for module in modules):g}',
            f'{statistics.median(functions):g}' if functions else '',
            *(f'{sum(counts) / max(lines, 1):.1%}' for counts in (
                [module.docstrings for module in modules], [module.comments for module in modules]))]


def rows(root):
    """Return a row for each package of a project, and behind them their sum.

    Args:
        root: `pathlib.Path` of the project.
    """
    found = []
    for name, aims in AIMS.items():
        packages = {package: modules for package, modules in _packages(root / name).items() if modules}
        found += [_row(*pair) for pair in packages.items()]
        found.append(_row(name, [module for modules in packages.values() for module in modules], aims))
    return found


def docs_line(root):
    """Return a sentence about the docs of a project; see `rows`."""
    pages = [path.read_text(encoding='utf-8') for path in (root / 'docs').rglob('*.md')]
    words = sum(len(page.split()) for page in pages)
    return f'Docs: {words:,} words (at most {DOCS_AIM[0]:,}) on {len(pages)} pages (at most {DOCS_AIM[1]}).'


def main():
    print(f'{wording.table(_HEADER, rows(ROOT))}\n\n{docs_line(ROOT)}')


if __name__ == '__main__':
    main()
