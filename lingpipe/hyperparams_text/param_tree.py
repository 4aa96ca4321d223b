"""Trees of Params and containers, and paths to their values, such as `body.layers[3].units`."""

import ast
import copy
import math
import re
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from lingpipe import wording

_NAME = r'[A-Za-z_][A-Za-z0-9_]*'
_ITEM = r"""\[(?:-?[0-9]+|'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")\]"""
PATH_PATTERN = rf'{_NAME}(?:{_ITEM})*(?:\.{_NAME}(?:{_ITEM})*)*'
_PATH = re.compile(PATH_PATTERN)
_STEP = re.compile(rf'\.?{_NAME}|{_ITEM}')
_SEE_ALL = 'print(params), or --mode=inspect_params'


class Step(NamedTuple):
    """One step of a path."""
    key: Any  # name of a field, index, or key of a dict
    path: str  # text of the path up to here


def is_params(value: Any) -> bool:
    """Return whether `value` is Params."""
    return hasattr(type(value), 'IterParams')


def is_sequence(value: Any) -> bool:
    """Return whether `value` is a list or a tuple, but not a named tuple."""
    return isinstance(value, (list, tuple)) and not hasattr(value, '_fields')  # a named tuple is a single value


def children(value: Any) -> list[tuple[Any, Any]] | None:
    """Return the pairs (key, child) of Params or a container, or None for any other value.

    A key is the name of a field, an index, or a key of a dict.
    """
    if is_params(value):
        return list(value.IterParams())
    if isinstance(value, dict):
        return list(value.items())
    return list(enumerate(value)) if is_sequence(value) else None


def rebuild(container: Any, new_children: list[Any]) -> Any:
    """Return a copy of `container` with new children, in the order of `children(container)`."""
    if isinstance(container, tuple):
        return type(container)(new_children)
    rebuilt = copy.copy(container)
    if isinstance(container, list):
        rebuilt[:] = new_children
    else:
        rebuilt.update(zip(container, new_children))
    return rebuilt


def replace_children(value: Any, function: Callable[[Any], Any]) -> Any:
    """Copy a container with `function(child)` for each child. Return any other value unchanged."""
    pairs = None if is_params(value) else children(value)
    return value if pairs is None else rebuild(value, [function(child) for _, child in pairs])


def parse_path(path: str) -> list[Step]:
    """Return the Steps of a path such as `body.layers[3].units`.

    Raises:
        AttributeError: `path` is not a valid path.
    """
    if not isinstance(path, str) or not _PATH.fullmatch(path):
        raise AttributeError(f"{path!r} is not the name of a parameter; write it like 'body.layers[3].units'.")
    return [Step(_key(match[0]), path[:match.end()]) for match in _STEP.finditer(path)]


def _key(step):
    return ast.literal_eval(step)[0] if step.startswith('[') else step.removeprefix('.')


def descendant(params: Any, steps: Sequence[Step]) -> Any:
    """Return the value at `steps` inside `params`.

    Raises:
        AttributeError: there is no such value.
    """
    value = params
    for step in steps:
        try:
            value = _child(value, step.key)
        except (IndexError, KeyError) as error:
            paths = [path for path, _ in walk(params)]
            nearest = wording.did_you_mean(steps[-1].path, paths, see_all=_SEE_ALL)
            raise AttributeError(f'{steps[-1].path} is not a parameter{nearest}') from error
    return value


def _child(value, key):
    if is_sequence(value) and isinstance(key, int):
        return value[key]
    if is_params(value) and key in value:
        return getattr(value, key)
    return dict(children(value) or [])[key]


def assign(params: Any, steps: Sequence[Step], value: Any) -> None:
    """Set the value at `steps` inside `params`. A list, tuple or dict that changes is replaced by a copy.

    Raises:
        AttributeError: there is no such value.
        TypeError: the Params that would change are frozen.
    """
    descendant(params, steps)
    for position in reversed(range(len(steps))):
        parent, key = descendant(params, steps[:position]), steps[position].key
        if is_params(parent):
            setattr(parent, key, value)
            return
        key = key % len(parent) if is_sequence(parent) else key
        value = rebuild(parent, [value if key == old_key else old for old_key, old in children(parent) or []])


def holds_params(value: Any) -> bool:
    """Return whether `value` is Params or a container with Params somewhere inside."""
    return is_params(value) or any(holds_params(child) for _, child in children(value) or [])


def walk(value: Any, path: str = '') -> Iterator[tuple[str, Any]]:
    """Yield (path, value) for all values inside Params or a container, depth first.

    A container without Params is a single value.
    """
    for key, child in children(value) or []:
        child_path = (path + (f'.{key}' if is_params(value) else f'[{key!r}]')).removeprefix('.')
        yield child_path, child
        if holds_params(child):
            yield from walk(child, child_path)


def copy_value(value: Any) -> Any:
    """Return a deep copy of `value` that shares functions, modules and tensors."""
    if is_params(value):
        return value.Copy()
    if children(value) is not None:
        return replace_children(value, copy_value)
    is_sentinel = type(value) is object
    is_by_reference = is_sentinel or isinstance(value, (types.ModuleType, types.MethodType)) or _is_tensor(value)
    return value if is_by_reference else copy.deepcopy(value)


def _is_tensor(value):
    tensorflow = sys.modules.get('tensorflow')
    return tensorflow is not None and isinstance(value, (tensorflow.Tensor, tensorflow.Variable))


def equal(first: Any, second: Any) -> bool:
    """Return whether two values are equal. NaN equals NaN, and arrays are compared as a whole."""
    if first is second:
        return True
    pairs, others = children(first), children(second)
    if pairs is not None and others is not None:
        values = dict(others)
        return (_kind(first) is _kind(second) and dict(pairs).keys() == values.keys()
                and all(equal(value, values[key]) for key, value in pairs))
    if isinstance(first, float) and isinstance(second, float) and math.isnan(first):
        return math.isnan(second)
    try:
        return bool(first == second)
    except ValueError:  # an array has no truth value
        return bool(sys.modules['numpy'].array_equal(first, second))


def _kind(value):
    """Return the built-in class of a container, or `object`."""
    return next(kind for kind in (list, tuple, dict, object) if isinstance(value, kind))
