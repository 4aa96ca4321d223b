"""The containers in values of parameters, and paths to their items.

Copying, visiting, and reading and writing of text walk through lists, tuples, dicts, named tuples and dataclasses. They
share this definition of the children of a value, and of paths such as `body.layers[3].units`.
"""

import ast
import copy
import dataclasses
import math
import re
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from lingpipe import spelling

_NAME = r'[A-Za-z_][A-Za-z0-9_]*'
_QUOTED = r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\""""
_INDEX = r'-?[0-9]{1,9}'
_ITEM = rf'\[(?:{_INDEX}|{_NAME}|{_QUOTED})\]'
_STEP = re.compile(rf'\.?(?P<field>{_NAME})|\[(?:(?P<index>{_INDEX})|(?P<record>{_NAME})|(?P<key>{_QUOTED}))\]')

PATH_PATTERN = rf'{_NAME}(?:{_ITEM})*(?:\.{_NAME}(?:{_ITEM})*)*'
_PATH = re.compile(PATH_PATTERN)
_SEE_ALL = 'print(params), or --mode=inspect_params'


class Step(NamedTuple):
    """One step of a path: to the field `key` of Params, or to the item `key` of a container."""
    is_item: bool
    key: Any


def is_params(value: Any) -> bool:
    """Returns whether `value` is Params."""
    return hasattr(type(value), 'IterParams')


def is_record(value: Any) -> bool:
    """Returns whether `value` is a named tuple or an instance of a dataclass: a container with fixed fields."""
    if isinstance(value, type):
        return False
    return dataclasses.is_dataclass(value) or (isinstance(value, tuple) and hasattr(value, '_fields'))


def children(value: Any) -> list[tuple[Any, Any]] | None:
    """Returns the [(key, child), ...] of a container, or None if `value` is not a container.

    Keys are the indices of a list or tuple, the keys of a dict, and the field names of a named tuple or dataclass.
    """
    if is_record(value):
        is_tuple = isinstance(value, tuple)
        names = value._fields if is_tuple else [field.name for field in dataclasses.fields(value)]
        return [(name, getattr(value, name)) for name in names if hasattr(value, name)]
    if isinstance(value, dict):
        return list(value.items())
    if isinstance(value, (list, tuple)):
        return list(enumerate(value))
    return None


def rebuild(value: Any, new_children: list[Any]) -> Any:
    """Returns a new container with the type and keys of `value`, and with `new_children`, a list in their order."""
    if isinstance(value, tuple):
        return type(value)(*new_children) if is_record(value) else type(value)(new_children)
    rebuilt = copy.copy(value)
    if isinstance(value, list):
        rebuilt[:] = new_children
    elif isinstance(value, dict):
        rebuilt.update(zip(value.keys(), new_children))
    else:
        for (name, _), child in zip(children(value) or [], new_children):
            object.__setattr__(rebuilt, name, child)  # also writes the fields of a frozen dataclass
    return rebuilt


def item_suffix(container: Any, key: int | str) -> str:
    """Returns the step of a path into the item `key` of `container`: `[3]`, `['key']` or `[field]`."""
    return f'[{key}]' if is_record(container) else f'[{key!r}]'


def parse_path(path: str) -> list[Step]:
    """Returns the Steps of a path such as `body.layers[3].units`.

    Raises:
        AttributeError: `path` is not a valid path.
    """
    if not isinstance(path, str) or not _PATH.fullmatch(path):
        raise AttributeError(f"{path!r} is not the name of a parameter; write it like 'body.layers[3].units'.")
    return [_step(match, path) for match in _STEP.finditer(path)]


def _step(match, path):
    if match['field']:
        return Step(False, match['field'])
    if match['index']:
        return Step(True, int(match['index']))
    try:
        return Step(True, match['record'] or ast.literal_eval(match['key']))
    except SyntaxError as error:
        raise AttributeError(f"{path!r} has a wrong backslash in {match['key']}; double it.") from error


def format_path(steps: Sequence[Step]) -> str:
    """Returns the text of `steps`, the inverse of `parse_path`."""
    text = ''.join(f'[{step.key!r}]' if step.is_item else f'.{step.key}' for step in steps)
    return text.removeprefix('.')


def descendant(params: Any, steps: Sequence[Step]) -> Any:
    """Returns the value at `steps` inside `params`.

    Raises:
        AttributeError: there is no such value.
        IndexError: a list or tuple has no such element.
    """
    value = params
    for position in range(len(steps)):
        value = _child(value, steps, position, params)
    return value


def _child(value, steps, position, root):
    step = steps[position]
    if step.is_item and _is_sequence(value) and isinstance(step.key, int):
        if -len(value) <= step.key < len(value):
            return value[step.key]
        raise IndexError(f'{format_path(steps[:position + 1])} does not exist: '
                         f'{format_path(steps[:position])} has {len(value)} elements.')
    if is_params(value) and not step.is_item and step.key in value:
        return getattr(value, step.key)
    pairs = dict(children(value) or [])
    if step.is_item and step.key in pairs:
        return pairs[step.key]
    raise AttributeError(f'{format_path(steps)} is not a parameter{_nearest_paths(value, steps, position, root)}')


def _is_sequence(value):
    return isinstance(value, (list, tuple)) and not is_record(value)


def _nearest_paths(value, steps, position, root):
    """Returns the end of the error that `steps[position]` is not in `value`."""
    parent, key = format_path(steps[:position]), steps[position].key
    if is_params(value):
        elsewhere = _paths_of(steps[-1].key, root, value.GetKeys())
        if elsewhere and steps[-1].key not in value:
            return f'; did you mean {" or ".join(elsewhere[:3])}?'
        return spelling.did_you_mean(str(key), value.GetKeys(), prefix=f'{parent}.' if parent else '', see_all=_SEE_ALL)
    if children(value) is None:
        return f': {parent} is {type(value).__name__} and holds nothing.'
    names = [item_suffix(value, name) for name, _ in children(value)]
    return spelling.did_you_mean(item_suffix(value, key), names, prefix=parent, see_all=_SEE_ALL)


def _paths_of(name, params, siblings):
    """Returns the paths of fields called `name` in `params`, else, if no sibling is similar, of similar names."""
    paths = _paths(params)
    found = [path for path in paths if path.endswith(f'.{name}')]
    if found or spelling.close(str(name), siblings):
        return found
    named = {}
    for path in paths:
        named.setdefault(path.rpartition('.')[2], path)
    return [named[other] for other in spelling.close(str(name), named)]


def _paths(params):
    paths = []
    visit('', params, lambda path, value: paths.append(path), lambda path, value: holds_params(value),
          lambda path, value: None)
    return paths


def assign(params: Any, steps: Sequence[Step], value: Any) -> None:
    """Sets the value at `steps` inside `params`; containers on the path are rebuilt.

    Raises:
        AttributeError, IndexError: as `descendant`.
        TypeError: the Params that would change are frozen.
    """
    descendant(params, steps)
    for position in reversed(range(len(steps))):
        parent = descendant(params, steps[:position])
        if is_params(parent):
            setattr(parent, steps[position].key, value)
            return
        key = steps[position].key
        key = key % len(parent) if _is_sequence(parent) else key
        value = rebuild(parent, [value if key == old_key else old for old_key, old in children(parent) or []])


def holds_params(value: Any) -> bool:
    """Returns whether `value` is Params or a container with Params somewhere inside."""
    return is_params(value) or any(holds_params(child) for _, child in children(value) or [])


def visit(path: str, value: Any, visit_fn: Callable[[str, Any], Any], enter_fn: Callable[[str, Any], bool],
          exit_fn: Callable[[str, Any], Any]) -> None:
    """Walks over `value`, depth first; see `Params.Visit`."""
    pairs = list(value.IterParams()) if is_params(value) else children(value)
    if pairs is None or not enter_fn(path, value):
        visit_fn(path, value)
        return
    for key, child in pairs:
        suffix = f'.{key}' if is_params(value) else item_suffix(value, key)
        visit((path + suffix).removeprefix('.'), child, visit_fn, enter_fn, exit_fn)
    exit_fn(path, value)


def copy_value(value: Any) -> Any:
    """Returns a deep copy of `value` with separate Params instead of shared ones; keeps functions, modules, tensors."""
    if is_params(value):
        return value.Copy()
    pairs = children(value)
    if pairs is not None:
        return rebuild(value, [copy_value(child) for _, child in pairs])
    is_sentinel = type(value) is object
    is_by_reference = is_sentinel or isinstance(value, (types.ModuleType, types.MethodType)) or _is_tensor(value)
    return value if is_by_reference else copy.deepcopy(value)


def _is_tensor(value):
    tensorflow = sys.modules.get('tensorflow')
    return tensorflow is not None and isinstance(value, (tensorflow.Tensor, tensorflow.Variable))


def equal(first: Any, second: Any) -> bool:
    """Returns whether two values are equal; unlike `==`, NaN equals NaN, and arrays are compared as a whole."""
    if first is second:
        return True
    if is_params(first) or is_params(second):
        return is_params(first) and is_params(second) and _equal_pairs(first.IterParams(), second.IterParams())
    pairs, others = children(first), children(second)
    if pairs is not None and others is not None:
        return _same_kind(first, second) and _equal_pairs(pairs, others)
    if isinstance(first, float) and isinstance(second, float) and math.isnan(first):
        return math.isnan(second)
    try:
        return bool(first == second)
    except ValueError:  # the truth of an array
        return bool(sys.modules['numpy'].array_equal(first, second))


def _same_kind(first, second):
    if is_record(first) or is_record(second):
        return type(first) is type(second)
    return any(isinstance(first, kind) and isinstance(second, kind) for kind in (list, tuple, dict))


def _equal_pairs(pairs, others):
    pairs, others = dict(pairs), dict(others)
    return pairs.keys() == others.keys() and all(equal(value, others[key]) for key, value in pairs.items())
