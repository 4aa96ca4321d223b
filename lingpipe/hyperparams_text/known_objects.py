"""The classes and functions that a text of parameters may name.

Reading a text never imports or evaluates a name. A name is only looked up among the objects that the program has
registered, and those that are already in the Params.
"""

import enum
import functools
import operator
from collections.abc import Callable
from typing import Any, TypeVar

from lingpipe import spelling
from lingpipe.hyperparams_text import param_tree, text_format

_registered: dict[str, Any] = {}  # 'module/Name' -> class or function
_params_factories: dict[Any, Callable[[], Any]] = {}  # class -> function that returns its fresh Params
_ClassOrFunction = TypeVar('_ClassOrFunction')


def RegisterType(obj: _ClassOrFunction, params: Callable[[], Any] | None = None,
                 key: str | None = None) -> _ClassOrFunction:
    """Lets texts name `obj`, a class or function, as `type/module/Name`; usable as a decorator.

    Args:
        obj: the class or function.
        params: function that returns fresh Params of the class; None: its `Params()` classmethod, if it has one.
        key: the `module/Name` in texts; None: the module that defines `obj`, and its name there.

    Returns:
        `obj`.

    Raises:
        TypeError: `obj` is not a class or function.
    """
    if not text_format.is_reference(obj):
        raise TypeError(f'RegisterType takes a class or a function, not {obj!r}.')
    if key is not None:
        text_format.public_keys[obj] = key
    _registered[text_format.reference_key(obj)] = obj
    if params is not None:
        _params_factories[obj] = params
    return obj


def RegisteredTypes() -> list[str]:
    """Returns the sorted names, such as `type/module/Name`, of all registered classes and functions."""
    return sorted(f'type/{key}' for key in _registered)


def fresh_params(cls: type) -> Any:
    """Returns new Params of the class `cls`, or None if the class has none."""
    if not isinstance(cls, type):
        return None
    factory = _params_factories.get(cls, getattr(cls, 'Params', None))
    params = factory() if callable(factory) else None
    return params if param_tree.is_params(params) else None


class KnownObjects:
    """The classes and functions that a text may name: those that are registered, and those in some Params."""

    def __init__(self, params: Any) -> None:
        self._objects: dict[str, list[Any]] = {}  # 'module/Name' -> objects of that name
        self._enums: dict[str, dict[str, type[enum.Enum]]] = {}  # class name -> {'module/Name': enum class}
        for known in _registered.values():
            self._add(known)
        self.add_held_by(params)

    def add_held_by(self, params: Any) -> None:
        """Adds the classes and functions in `params`."""
        params.Visit(self._add_value, enter_fn=lambda path, value: self._add_value(path, value) or True)

    def _add_value(self, path, value):
        """Adds `value` if it is a class or function, else the class of an enum member or record."""
        if text_format.is_reference(value):
            self._add(value)
        elif isinstance(value, enum.Enum) or param_tree.is_record(value):
            self._add(type(value))
        elif isinstance(value, dict):
            for key in value:
                self._add_value(path, key)

    def _add(self, known):
        key = text_format.reference_key(known)
        others = self._objects.setdefault(key, [])
        if all(known != other for other in others):
            others.append(known)
        if isinstance(known, type) and issubclass(known, enum.Enum):
            self._enums.setdefault(known.__name__, {})[key] = known

    def find(self, key: str) -> type:
        """Returns the object of a `module/Name` key.

        Raises:
            ValueError: no known object has that key, or several do.
        """
        found = self._objects.get(key, [])
        if len(found) == 1:
            return found[0]
        if found:
            raise ValueError(f'names {len(found)} different objects; set this field in Python instead.')
        raise ValueError('names nothing that these params hold or that hyperparams.RegisterType has registered'
                         + spelling.did_you_mean(key, self._objects, 'type/', see_all='hyperparams.RegisteredTypes()'))

    def find_enum(self, word: str) -> enum.Enum | None:
        """Returns the enum member that `Class.MEMBER` names, or None if no known enum class has that name."""
        class_name, dot, members = word.partition('.')
        classes = list(self._enums.get(class_name, {}).values())
        if not dot or not classes:
            return None
        if len(classes) > 1:
            raise ValueError(f'names {len(classes)} different enum classes; set this field in Python instead.')
        return enum_member(classes[0], members)


def enum_member(enum_class: type[enum.Enum], names: str) -> enum.Enum:
    """Returns the member of `enum_class` called `names`; for a Flag, any number of names joined by '|'.

    Raises:
        ValueError: a name is not that of a member.
    """
    if not names and issubclass(enum_class, enum.Flag):
        return enum_class(0)
    members = []
    for name in names.split('|'):
        if name not in enum_class.__members__:
            nearest = spelling.did_you_mean(name, enum_class.__members__)
            raise ValueError(f'is not a member of {enum_class.__name__}{nearest}')
        members.append(enum_class[name])
    return functools.reduce(operator.or_, members) if len(members) > 1 else members[0]
