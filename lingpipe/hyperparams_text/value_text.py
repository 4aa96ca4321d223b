"""Conversion between values and Python literals, with names for classes and functions."""

import ast
import inspect
import re
import sys
from collections.abc import Callable
from typing import Any, TypeVar

from lingpipe import wording
from lingpipe.hyperparams_text import param_tree

INLINE_STRING = r"""'(?:[^'\\\n]|\\.)*'|"(?:[^"\\\n]|\\.)*\""""
REFERENCE = r'type/([^/\s]+/[^/\s]+)'
_TOKEN = re.compile(rf"""{INLINE_STRING}|(?P<word>[^\s,:\[\](){{}}'"]+)""")
_CONSTANTS = {'NoneType': None, 'inf': float('inf'), '+inf': float('inf'), '-inf': float('-inf'), 'nan': float('nan')}
_SCALARS = (bool, int, float, str, type(None))


# ---- writing --------------------------------------------------------------------------------------------------------
_registered: dict[str, Any] = {}  # 'module/Name' -> class or function
_public_keys: dict[Any, str] = {}  # class or function -> 'module/Name' that replaces its own
_params_factories: dict[Any, Callable[[], Any]] = {}  # class -> function that returns its fresh Params
_ClassOrFunction = TypeVar('_ClassOrFunction')


def RegisterType(obj: _ClassOrFunction, params: Callable[[], Any] | None = None,
                 key: str | None = None) -> _ClassOrFunction:
    """Register a class or function, which texts can then name as `type/module/Name`. This can be a decorator.

    Args:
        params: function that returns fresh Params of the class; None: its `Params()` classmethod, if it has one.
        key: `module/Name` to use in texts; None: the object's `__module__` and `__qualname__`.

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
    """Return new Params of the class `cls`, or None if it has no Params."""
    if not isinstance(cls, type):
        return None
    factory = _params_factories.get(cls, getattr(cls, 'Params', None))
    params = factory() if callable(factory) else None
    return params if param_tree.is_params(params) else None


def is_reference(value: Any) -> bool:
    """Return whether `value` is a class or a function that a text can name."""
    if isinstance(value, type):
        return True
    bound_to = getattr(value, '__self__', None)
    is_free = bound_to is None or inspect.ismodule(bound_to) or isinstance(bound_to, type)
    return inspect.isroutine(value) and is_free and isinstance(getattr(value, '__module__', None), str)


def reference_key(value: Any) -> str:
    """Return the `module/Name` of a class or function."""
    return _public_keys.get(value) or f'{value.__module__}/{value.__qualname__}'


class Names:
    """The classes and functions that a text can name: all in `params`, and all that `RegisterType` has registered.

    Args:
        words_are_strings: whether an unknown word without quotes is a string, not an error.
    """

    def __init__(self, params: Any, words_are_strings: bool) -> None:
        self.words_are_strings = words_are_strings
        self._objects = {key: [obj] for key, obj in _registered.items()}
        self.add_held_by(params)

    def add_held_by(self, value: Any) -> None:
        """Add `value` if it is a class or function. Otherwise add all classes and functions inside it."""
        if is_reference(value):
            others = self._objects.setdefault(reference_key(value), [])
            others += [value] if value not in others else []
        for pair in param_tree.children(value) or []:
            for held in pair:
                self.add_held_by(held)

    def find(self, key: str) -> Any:
        """Return the class or function whose `module/Name` is `key`. Raise ValueError unless there is exactly one."""
        found = self._objects.get(key, [])
        if len(found) > 1:
            raise ValueError(f'names {len(found)} different objects; set this field in Python instead.')
        if not found:
            nearest = wording.did_you_mean(key, self._objects, 'type/')
            raise ValueError('names nothing that these params hold or that hyperparams.RegisterType has registered'
                             + nearest)
        return found[0]


def format_value(value: Any) -> str:
    """Return the text of a value that holds no Params. An unknown object becomes the name of its type."""
    return 'NoneType' if value is None else _literal(value)


def _literal(value):
    for plain in _SCALARS:  # for a subclass, such as numpy.float64, only the number or string is written
        if isinstance(value, plain):
            return plain.__repr__(value)
    if param_tree.children(value) is not None:
        return _literal_of_container(value)
    if is_reference(value):
        return f'type/{reference_key(value)}'
    if _is_instance(value, 'tensorflow', 'DType'):
        return value.name
    return _literal(value.item()) if _is_instance(value, 'numpy', 'generic') else type(value).__name__


def _literal_of_container(value):
    pairs = param_tree.children(value)
    if isinstance(value, dict):
        return f'{{{", ".join(sorted(f"{_literal(key)}: {_literal(child)}" for key, child in pairs))}}}'
    texts = ', '.join(_literal(child) for _, child in pairs)
    if isinstance(value, list):
        return f'[{texts}]'
    return f'({texts},)' if len(pairs) == 1 else f'({texts})'


def _is_instance(value, module, name):
    """Return whether `value` has the class `name` of a module, without importing the module."""
    return module in sys.modules and isinstance(value, getattr(sys.modules[module], name))


# ---- reading --------------------------------------------------------------------------------------------------------


def parse(text: str, current: Any, type_name: str, names: Names) -> Any:
    """Convert the text of a field to its value.

    Args:
        type_name: name of the field's type, as ToTextWithTypes writes it. Only bool, int, float and str have an effect.

    Raises:
        ValueError: the text is not a valid value. The message does not name the field.
    """
    if text in ('None', 'NoneType'):
        return None
    if type_name in _CONVERTERS:
        return _CONVERTERS[type_name](_read_leniently(text, type_name, names))
    if text == format_value(current):
        return current  # also keeps values that no text can represent, such as a lock
    word = text.strip('\'"')
    if _is_instance(current, 'tensorflow', 'DType') and re.fullmatch(r'\w+', word):
        return _tf_dtype(word, 'is not the name of a dtype; write one such as float32.')
    if current is None and text in ('true', 'false'):
        return text == 'true'
    return _read(text, names, names.words_are_strings)


def _read_leniently(text, type_name, names):
    """Return the value of a text that may have too many or too few quotes."""
    try:
        value = _read(text, names, words_are_strings=True) if text else ''
    except ValueError:
        if type_name != 'str' or re.match(rf'["\']|{REFERENCE}', text):
            raise
        return text  # such as a file pattern '[a-f]*.txt' without quotes
    return value if type_name == 'str' or not isinstance(value, str) else _word(value, names, words_are_strings=True)


def _as_bool(value):
    word = str(value).lower()
    if word not in ('true', 'false'):
        raise ValueError('is not a bool; write True or False.')
    return word == 'true'


def _as_int(value):
    if type(value) is int or value == 'auto':  # some numbers may be 'auto'; the program checks which
        return value
    is_integral = isinstance(value, float) and value.is_integer()
    raise ValueError('is not an int; write ' + (f'{value:.0f}.' if is_integral else 'digits only.'))


def _as_float(value):
    if type(value) not in (int, float):
        raise ValueError('is not a float; write a number such as 0.1, 1e-3 or inf.')
    return float(value)


_CONVERTERS = {'bool': _as_bool, 'int': _as_int, 'float': _as_float, 'str': lambda value: value}


def _read(text, names, words_are_strings):
    """Return the value of a literal, a reference or a word."""
    if not text:
        raise ValueError('has no value.')
    if not re.match(rf'[\[({{"\']|{REFERENCE}', text):
        return _word(text, names, words_are_strings)
    try:
        value = ast.literal_eval(_TOKEN.sub(_marked, text))
    except (SyntaxError, TypeError) as error:
        raise ValueError(f'cannot be read ({getattr(error, "msg", error)}); write it as in Python.') from error
    except ValueError as error:
        raise ValueError('cannot be read; put commas between values, and strings in quotes.') from error
    return _resolved(value, lambda word: _word(word, names, words_are_strings))


def _marked(match):
    """Rewrite a token for `ast.literal_eval`: a word becomes `(b'word',)`, and a string gets parentheses."""
    return f'({match["word"].encode()!r},)' if match['word'] else f'({match[0]})'  # ('a')('b') fails, 'a''b' does not


def _resolved(value, meaning):
    """Return `value` with each marked word replaced by `meaning(word)`."""
    if isinstance(value, tuple) and value and isinstance(value[0], bytes):
        return meaning(value[0].decode())
    if param_tree.is_sequence(value):
        return type(value)(_resolved(child, meaning) for child in value)
    if isinstance(value, dict):
        return {_resolved(key, meaning): _resolved(child, meaning) for key, child in value.items()}
    if not isinstance(value, _SCALARS):
        raise ValueError(f'has a {type(value).__name__}, which no field can be.')
    return value


def _word(word, names, words_are_strings):
    """Return the value that `word` means: a constant, number, class, function, string or dtype."""
    if word in _CONSTANTS:
        return _CONSTANTS[word]
    try:
        number = ast.literal_eval(word)
        if isinstance(number, _SCALARS):
            return number
    except (ValueError, SyntaxError):  # it is a name
        pass
    reference = re.fullmatch(REFERENCE, word)
    if reference:
        return names.find(reference[1])
    if words_are_strings:
        return word
    return _tf_dtype(word, f'has {word!r}, which is neither a number nor a known name; put a string in quotes.')


def _tf_dtype(name, problem):
    dtype = getattr(sys.modules['tensorflow'].dtypes, name, None) if 'tensorflow' in sys.modules else None
    if not _is_instance(dtype, 'tensorflow', 'DType'):
        raise ValueError(problem)
    return dtype
