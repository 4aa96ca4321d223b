"""The classes and functions that a text of parameters may name.

Reading a text never imports or evaluates a name: it is looked up among the objects that the program has registered, and
those that the Params already hold.
"""

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from lingpipe import spelling
from lingpipe.hyperparams_text import param_tree

_registered: dict[str, Any] = {}  # 'module/Name' -> class or function
_public_keys: dict[Any, str] = {}  # class or function -> 'module/Name', if another module defines it
_params_factories: dict[Any, Callable[[], Any]] = {}  # class -> function that returns its fresh Params
_ClassOrFunction = TypeVar('_ClassOrFunction')


def RegisterType(obj: _ClassOrFunction, params: Callable[[], Any] | None = None,
                 key: str | None = None) -> _ClassOrFunction:
    """Let texts name `obj`, a class or function, as `type/module/Name`; usable as a decorator.

    Args:
        params: function that returns fresh Params of the class; None: its `Params()` classmethod, if it has one.
        key: the `module/Name` in texts; None: the module that defines `obj`, and its name there.

    Raises:
        TypeError: `obj` is not a class or function.
    """
    if not is_reference(obj):
        raise TypeError(f'RegisterType takes a class or a function, not {obj!r}.')
    if key is not None:
        _public_keys[obj] = key
    _registered[reference_key(obj)] = obj
    if params is not None:
        _params_factories[obj] = params
    return obj


def fresh_params(cls: Any) -> Any:
    """Return new Params of the class `cls`, or None if it is not a class or has none."""
    if not isinstance(cls, type):
        return None
    factory = _params_factories.get(cls, getattr(cls, 'Params', None))
    params = factory() if callable(factory) else None
    return params if param_tree.is_params(params) else None


def is_reference(value: Any) -> bool:
    """Return whether `value` is written as `type/module/Name`: a class, or a function not bound to an instance."""
    if isinstance(value, type):
        return True
    bound_to = getattr(value, '__self__', None)
    is_free = bound_to is None or inspect.ismodule(bound_to) or isinstance(bound_to, type)
    return inspect.isroutine(value) and is_free and isinstance(getattr(value, '__module__', None), str)


def reference_key(value: Any) -> str:
    """Return the `module/Name` of a class or function."""
    return _public_keys.get(value) or f'{value.__module__}/{value.__qualname__}'


class Names:
    """The classes and functions that the words of a text can name: registered ones, and ones that some Params hold.

    Args:
        words_are_strings: whether an unknown word without quotes is a string, even if the field is None.
    """

    def __init__(self, params: Any, words_are_strings: bool) -> None:
        self.words_are_strings = words_are_strings
        self._objects = {key: [obj] for key, obj in _registered.items()}
        self.add_held_by(params)

    def add_held_by(self, value: Any) -> None:
        """Add the classes and functions in Params, in a container, or the one that `value` is."""
        if is_reference(value):
            others = self._objects.setdefault(reference_key(value), [])
            others += [value] if value not in others else []
        for pair in param_tree.children(value) or []:
            for held in pair:
                self.add_held_by(held)

    def find(self, key: str) -> Any:
        """Return the class or function of a `module/Name`."""
        found = self._objects.get(key, [])
        if len(found) > 1:
            raise ValueError(f'names {len(found)} different objects; set this field in Python instead.')
        if not found:
            nearest = spelling.did_you_mean(key, self._objects, 'type/')
            raise ValueError('names nothing that these params hold or that hyperparams.RegisterType has registered'
                             + nearest)
        return found[0]
