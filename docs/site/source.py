"""The source of LingPipe as syntax trees, in which constants and functions are looked up by their names."""

import ast
import functools
import pathlib
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).parents[2]


class Module:
    """A source file.

    Args:
        path: its path below the root, such as 'lingpipe/layers/attention.py'.

    Attributes:
        name: such as 'lingpipe.layers.attention'.
        tree: its syntax tree.
    """

    def __init__(self, path: pathlib.Path) -> None:
        self.name = '.'.join(path.with_suffix('').parts).removesuffix('.__init__')
        self.tree = ast.parse((ROOT / path).read_text('utf-8'))

    @functools.cached_property
    def title(self) -> str:
        """The first line of its docstring, without the full stop."""
        return (ast.get_docstring(self.tree) or self.name).splitlines()[0].rstrip('.:')

    @functools.cached_property
    def functions(self) -> dict[str, ast.FunctionDef]:
        """Its functions and methods, by name."""
        return {node.name: node for node in ast.walk(self.tree) if isinstance(node, ast.FunctionDef)}

    def value_of(self, node: ast.expr) -> ast.expr | None:
        """Return the expression of a constant of this or another module of LingPipe; None where there is none."""
        home = self._home_of(node)
        return home and home._constants.get(node.id if isinstance(node, ast.Name) else node.attr)

    def choices(self, node: ast.expr) -> list[str]:
        """Return the members of a constant that is a list, tuple or dictionary, as source; empty for others."""
        value, home = self.value_of(node), self._home_of(node)
        members = {ast.Dict: 'keys', ast.Tuple: 'elts', ast.List: 'elts'}.get(type(value))
        return [text for each in getattr(value, members) for text in home._member(each)] if members else []

    def _member(self, node):
        if isinstance(node, ast.Starred):
            return self.choices(node.value)
        return [ast.unparse(self.value_of(node) or node)]

    def _home_of(self, node):
        """Return the module that defines a name, None where that is none of LingPipe's."""
        if isinstance(node, ast.Name):
            return self
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            return modules().get(self._imports.get(node.value.id, ''))
        return None

    @functools.cached_property
    def _constants(self):
        pairs = [(target, node.value) for node in self.tree.body if isinstance(node, ast.Assign)
                 for target in node.targets]
        several = [pair for target, value in pairs if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple)
                   for pair in zip(target.elts, value.elts)]
        return {target.id: value for target, value in pairs + several if isinstance(target, ast.Name)}

    @functools.cached_property
    def _imports(self):
        return {alias.asname or alias.name: f'{node.module}.{alias.name}' for node in ast.walk(self.tree)
                if isinstance(node, ast.ImportFrom) for alias in node.names}

    def enclosed(self) -> Iterator[tuple[ast.AST, list[ast.AST]]]:
        """Yield every node with the nodes that enclose it, the outermost first."""
        waiting: list[tuple[ast.AST, list[ast.AST]]] = [(self.tree, [])]
        while waiting:
            node, around = waiting.pop()
            yield node, around
            waiting += [(child, [*around, node]) for child in reversed(list(ast.iter_child_nodes(node)))]


@functools.cache
def modules() -> dict[str, Module]:
    """Return {name: Module} of all modules of LingPipe."""
    paths = sorted((ROOT / 'lingpipe').rglob('*.py'))
    return {module.name: module for module in (Module(path.relative_to(ROOT)) for path in paths)}


def table_cell(text: str) -> str:
    """Return text that a table of Markdown shows as it is."""
    return ' '.join(text.split()).replace('|', r'\|').replace('<', '&lt;')


def code(text: str) -> str:
    """Return text as code in a table of Markdown."""
    fence = '``' if '`' in text else '`'
    return fence + ' '.join(text.split()).replace('|', r'\|') + fence
