"""Reading and writing the text of Params, with one `path : value` line per field."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from lingpipe.hyperparams_text import param_tree, value_text

_IN_BRACKETS = rf'(?=[\[({{]|dict\[|{value_text.REFERENCE})(?:{value_text.INLINE_STRING}|[^\n;])*'
_BETWEEN = r'(?:[\s;]|#[^\n]*)*'
_ENTRY = re.compile(rf'({param_tree.PATH_PATTERN})[ \t]*[:=][ \t]*'
                    rf'({value_text.INLINE_STRING}|{_IN_BRACKETS}|[^\n;]*)[ \t]*(?=[\n;]|$){_BETWEEN}')
_SHAPE = re.compile(r'(list|tuple)\[([0-9]+)\]|dict(\[.*\])', re.DOTALL)
_CLASS_CHANGE, _SHAPE_CHANGE, _VALUE_CHANGE = range(3)  # the order of changes of equal depth
_NUM_SHOWN = 80


def split(text: str) -> list[tuple[str, str]]:
    """Return the (path, value) of each entry. A line end or `;` ends an entry, and `#` begins a comment line.

    Raises:
        ValueError: an entry is not `path:value` or `path=value`.
    """
    text = re.sub(_BETWEEN, '', text, count=1)  # what stands before the first entry
    entries, position = [], 0
    while position < len(text):
        match = _ENTRY.match(text, position)
        if not match:
            line = re.split('[\n;]', text[position:position + _NUM_SHOWN], maxsplit=1)[0]
            raise ValueError(f'{line!r} is not of the form <key> = <value> or <key> : <value>.')
        entries.append((match[1], match[2].strip()))
        position = match.end()
    return entries


def join(texts: Mapping[str, str]) -> str:
    """Return a `path : text` line for each of `texts`, sorted by path."""
    def natural(path):  # element 2 of a list precedes element 10
        return [int(part) if part.isdecimal() else part for part in re.split('([0-9]+)', path)]
    return ''.join(f'{path} : {texts[path]}\n' for path in sorted(texts, key=natural))


def shape(container: Any) -> str:
    """Return the type of a container as ToTextWithTypes writes it, such as `list[3]` or `dict['a', 'b']`."""
    if isinstance(container, dict):
        return f'dict{value_text.format_value(list(container))}'
    return f'{"list" if isinstance(container, list) else "tuple"}[{len(container)}]'


def read(params: Any, entries: Iterable[tuple[str, str]], kinds: Mapping[str, str],
         words_are_strings: bool = False) -> None:
    """Set fields of `params` to the values in `entries`.

    Args:
        kinds: {path: type} as ToTextWithTypes writes it, such as `int` or `list[3]`; may be empty.
        words_are_strings: whether an unknown word without quotes is a string, not an error.
    """
    reader = _Reader(params, kinds, value_text.Names(params, words_are_strings))
    changes = [_change(path, text) for path, text in entries]
    changes += [(param_tree.parse_path(path), _SHAPE_CHANGE, kind) for path, kind in kinds.items()
                if _SHAPE.fullmatch(kind)]
    # Outer fields first, so that new Params, or a longer list, exist before the fields inside them are set.
    for steps, change, text in sorted(changes, key=lambda item: (len(item[0]), item[1])):
        try:
            reader.apply(steps, change, text)
        except ValueError as error:
            shown = text if len(text) <= _NUM_SHOWN else text[:_NUM_SHOWN - 3] + '...'
            raise ValueError(f'{steps[-1].path} : {shown} {error}') from error


def _change(path, text):
    steps = param_tree.parse_path(path)
    is_class_change = len(steps) > 1 and path.endswith('.cls')
    return steps, _CLASS_CHANGE if is_class_change else _VALUE_CHANGE, text


class _Reader:
    """A reader that sets fields of Params from text."""

    def __init__(self, params, kinds, names):
        self._params = params
        self._kinds = kinds
        self._names = names

    def apply(self, steps: list[param_tree.Step], change: int, text: str) -> None:
        """Set the value or shape of the field at the path `steps`, as written in `text`."""
        if change == _SHAPE_CHANGE:
            self._reshape(steps, text)
        elif change == _VALUE_CHANGE or not self._replace_params(steps, text):
            self._set_value(steps, text)

    def _set_value(self, steps, text):
        current = param_tree.descendant(self._params, steps)
        value = self._parse(steps, text, current)
        is_slip = value not in (None, current) and not text.startswith(('[', '(', '{', '"', "'"))  # such as body=4
        if param_tree.holds_params(current) and is_slip:
            raise ValueError('cannot stand where Params do; set their fields, as in path.field, or set None.')
        param_tree.assign(self._params, steps, value)

    def _parse(self, steps, text, current):
        return value_text.parse(text, current, self._kinds.get(steps[-1].path, type(current).__name__), self._names)

    def _replace_params(self, steps, text):
        """Replace Params if `text` names another class, and return whether they were replaced."""
        owner = param_tree.descendant(self._params, steps[:-1])
        is_params = param_tree.is_params(owner)
        if param_tree.holds_params(owner) and not (is_params and 'cls' in owner):
            return False
        old_class = owner.cls if is_params else None
        new_class = self._parse(steps, text, old_class)
        if new_class is old_class:
            return False
        fresh = value_text.fresh_params(new_class)
        if fresh is None:
            if old_class is None:
                raise ValueError('has no known Params; give hyperparams.RegisterType a function that makes them.')
            return False
        if old_class is not None:
            _keep_changes(owner, value_text.fresh_params(old_class), fresh)
        param_tree.assign(self._params, steps[:-1], fresh)
        self._names.add_held_by(fresh)
        return True

    def _reshape(self, steps, kind):
        current = param_tree.descendant(self._params, steps)
        sequence, length, keys = _SHAPE.fullmatch(kind).groups()
        if keys:
            keys = value_text.parse(keys, None, 'list', self._names)
            shaped = {key: current.get(key) if isinstance(current, dict) else None for key in keys}
        else:
            kept = list(current) if param_tree.is_sequence(current) else []
            shaped = {'list': list, 'tuple': tuple}[sequence]((kept + [None] * int(length))[:int(length)])
        param_tree.assign(self._params, steps, shaped)


def _keep_changes(old, old_defaults, new):
    """Copy the fields of `old` that differ from `old_defaults` to `new`."""
    defaults = dict(param_tree.children(old_defaults) or [])
    for name, value in old.IterParams():
        is_default = name in defaults and param_tree.equal(value, defaults[name])
        if name in new and name != 'cls' and not is_default:
            setattr(new, name, value)
