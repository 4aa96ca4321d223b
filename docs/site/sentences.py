"""Sentences that expressions of the source make: what varies stands in {braces}."""

import ast
import itertools

import source

_MOST = 6  # alternatives of one expression


def of(node: ast.expr, module: source.Module, function: ast.FunctionDef | None, depth: int = 0) -> list[str]:
    """Return the sentences that an expression can make, one for each branch that it takes.

    Args:
        node: an expression whose value is a text.
        module: where it stands.
        function: the function in which it stands, or None.
        depth: how many names and calls have been followed.
    """
    if isinstance(node, ast.Constant):
        return [str(node.value)]
    if isinstance(node, ast.JoinedStr):
        return _joined([_of_part(part, module, function, depth) for part in node.values])
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _joined([of(side, module, function, depth) for side in (node.left, node.right)])
    if isinstance(node, ast.IfExp):
        return [text for branch in (node.body, node.orelse) for text in of(branch, module, function, depth)]
    followed = _followed(node, module, function) if depth < 4 else []
    texts = [text for value, place in followed for text in of(value, module, place, depth + 1)]
    return texts[:_MOST] or [_placeholder(node)]


def _joined(parts):
    return [''.join(texts) for texts in itertools.islice(itertools.product(*parts), _MOST)]


def _of_part(part, module, function, depth):
    """Of an f-string: text, or a value, which is followed where it is a text of several words."""
    if isinstance(part, ast.Constant):
        return [part.value]
    texts = of(part.value, module, function, depth)
    are_words = all(' ' in text or text == '' for text in texts)
    is_branch = isinstance(part.value, ast.IfExp)
    return texts if are_words or is_branch and part.conversion == -1 else [_placeholder(part.value)]


def _followed(node, module, function):
    """Return pairs of the expressions that a name or a call stands for, and the function in which they stand."""
    if isinstance(node, ast.Name) and function:
        values = [(each.value, function) for each in ast.walk(function) if isinstance(each, ast.Assign)
                  and any(isinstance(target, ast.Name) and target.id == node.id for target in each.targets)]
        if values:
            return values
    if isinstance(node, ast.Call):
        called = module.functions.get(ast.unparse(node.func).removeprefix('self.'))
        return [(each.value, called) for each in ast.walk(called)
                if isinstance(each, ast.Return) and each.value] if called else []
    value = module.value_of(node)
    return [(value, None)] if isinstance(value, (ast.Constant, ast.JoinedStr, ast.BinOp)) else []


def _placeholder(node):
    """Return the name of a value in braces, short enough to read."""
    if isinstance(node, ast.Call):
        is_method = isinstance(node.func, ast.Attribute)
        receiver = node.func.value if is_method else None
        if is_method and isinstance(receiver, ast.Constant):  # ', '.join(names)
            return _placeholder(node.args[0]) if node.args else '{...}'
        name = node.func.attr if is_method else ast.unparse(node.func)
        plain = node.args[0] if name in ('str', 'type', 'len', 'sorted', 'list', 'min', 'max') and node.args else None
        return _placeholder(plain) if plain is not None else '{' + name.lstrip('_') + '}'
    if isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)):
        text = ast.unparse(node).removeprefix('self.').lstrip('_')
        return '{' + text + '}' if len(text) < 40 else '{...}'
    names = [each.id for each in ast.walk(node) if isinstance(each, ast.Name)]
    return '{' + names[0].lstrip('_') + '}' if names else '{...}'
