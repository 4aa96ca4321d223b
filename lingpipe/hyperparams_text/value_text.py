"""The text of a value: written with `repr`, read with `ast.literal_eval`; classes and functions by name."""

import ast
import re
import sys
from typing import Any

from lingpipe.hyperparams_text import param_tree, registry

INLINE_STRING = r"""'(?:[^'\\\n]|\\.)*'|"(?:[^"\\\n]|\\.)*\""""
REFERENCE = r'type/([^/\s]+/[^/\s]+)'
_TOKEN = re.compile(rf"""{INLINE_STRING}|(?P<word>[^\s,:\[\](){{}}'"]+)""")
_CONSTANTS = {'NoneType': None, 'inf': float('inf'), '+inf': float('inf'), '-inf': float('-inf'), 'nan': float('nan')}
_SCALARS = (bool, int, float, str, type(None))


# ---- writing --------------------------------------------------------------------------------------------------------


def format_value(value: Any) -> str:
    """Return the text of a value that holds no Params; if the value has no text, the name of its type."""
    return 'NoneType' if value is None else _literal(value)


def _literal(value):
    for plain in _SCALARS:  # for a subclass, such as numpy.float64, only the number or string counts
        if isinstance(value, plain):
            return plain.__repr__(value)
    if param_tree.children(value) is not None:
        return _literal_of_container(value)
    if registry.is_reference(value):
        return f'type/{registry.reference_key(value)}'
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
    """Return whether `value` is of a class of a module, without importing the module."""
    return module in sys.modules and isinstance(value, getattr(sys.modules[module], name))


# ---- reading --------------------------------------------------------------------------------------------------------


def parse(text: str, current: Any, type_name: str, names: registry.Names) -> Any:
    """Return the value of a field from a text.

    Args:
        text: the value's text.
        current: the field's current value.
        type_name: name of the type that the field needs, as ToTextWithTypes writes it; only scalar types count.

    Raises:
        ValueError: the text has no value of that type; the caller puts the field and the text before the message.
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
    """Return the value of a text; a string field takes any text, and a number field takes a quoted number."""
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
    """Return the value of a text, which is in brackets or quotes, a reference, or one word."""
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
    """Return a token in a form for `ast.literal_eval`: a word becomes a tuple of bytes, as no other value does."""
    return f'({match["word"].encode()!r},)' if match['word'] else f'({match[0]})'  # ('a')('b') is an error, 'a''b' none


def _resolved(value, meaning):
    """Return a value in which each marked word is replaced by its meaning."""
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
    """Return the value of a text without brackets and quotes."""
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
