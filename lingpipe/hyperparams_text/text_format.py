"""The text format of parameters: writing values, and splitting a text into entries.

`text_reader` reads the values back.
"""

import enum
import inspect
import re
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

from lingpipe.hyperparams_text import param_tree

STRING = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\"""", re.DOTALL)
INLINE_STRING = re.compile(r"""'(?:[^'\\\n]|\\.)*'|"(?:[^"\\\n]|\\.)*\"""")
REFERENCE = re.compile(r'type/([^/\s{]+/[^/\s{]+)')
public_keys: dict[Any, str] = {}  # class or function -> 'module/Name', where that is not the module that defines it
_LONGEST_PATH = 1000  # characters: ten times the longest of any model that comes with LingPipe
_NUM_SHOWN = 80
_ENTRY = re.compile(rf'({param_tree.PATH_PATTERN})[ \t]*(.)[ \t]*')
_ESCAPE = re.compile(r"""\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8})|([\\'"]))""")


class Entry(NamedTuple):
    """One `path : value` of a text."""
    path: str
    value: str


# ---- objects that are written by name -------------------------------------------------------------------------------


def is_reference(value: Any) -> bool:
    """Returns whether `value` is written as `type/module/Name`: a class, or a function not bound to an instance."""
    if isinstance(value, type):
        return True
    bound_to = getattr(value, '__self__', None)
    is_free = bound_to is None or inspect.ismodule(bound_to) or isinstance(bound_to, type)
    return inspect.isroutine(value) and is_free and isinstance(getattr(value, '__module__', None), str)


def reference_key(value: Any) -> str:
    """Returns the `module/Name` of a class or function."""
    return public_keys.get(value) or f'{value.__module__}/{value.__qualname__}'


def is_tf_dtype(value: Any) -> bool:
    """Returns whether `value` is a tf.DType; does not import TensorFlow."""
    tensorflow = sys.modules.get('tensorflow')
    return tensorflow is not None and isinstance(value, tensorflow.DType)


def is_numpy_scalar_type(scalar_type: type) -> bool:
    """Returns whether `scalar_type` is a class such as numpy.float32 whose values are plain numbers or strings."""
    numpy = sys.modules.get('numpy')
    return numpy is not None and issubclass(scalar_type, (numpy.bool_, numpy.integer, numpy.floating, numpy.str_))


def _is_numpy_dtype(value):
    numpy = sys.modules.get('numpy')
    return numpy is not None and isinstance(value, numpy.dtype)


def _numpy_dtype_text(dtype):
    if dtype.names or dtype.subdtype:
        return type(dtype).__name__  # a structure has no short name
    has_name = getattr(dtype.type, '__name__', '') == dtype.name and dtype.isnative
    return f'dtype/{dtype.name if has_name else dtype.str}'


# ---- writing --------------------------------------------------------------------------------------------------------


def quote(text: str) -> str:
    """Returns `text` in the quotes that need fewer escapes; control characters except newlines are escaped."""
    delimiter = "'" if text.count("'") <= text.count('"') else '"'
    return delimiter + ''.join(_escaped(character, delimiter) for character in text) + delimiter


def _escaped(character, delimiter):
    if character in ('\\', delimiter):
        return '\\' + character
    if character.isprintable() or character in '\n\t':
        return character
    code = ord(character)
    return f'\\x{code:02x}' if code < 0x100 else f'\\u{code:04x}' if code < 0x10000 else f'\\U{code:08x}'


def unquote(quoted: str) -> str:
    """Returns the string that `quote` turned into `quoted`; a backslash without a known escape is kept."""
    def unescaped(match):
        hexadecimal = match[1] or match[2] or match[3]
        return chr(int(hexadecimal, 16)) if hexadecimal else match[4]
    return _ESCAPE.sub(unescaped, quoted[1:-1])


def format_value(value: Any) -> str:
    """Returns the text of a field's value, which must not have Params inside."""
    if value is None:
        return 'NoneType'
    is_string = isinstance(value, str) and not isinstance(value, enum.Enum)
    return quote(value) if is_string else _format_literal(value)


def _format_literal(value):
    if isinstance(value, enum.Enum):
        return _format_enum(value)
    if value is None or isinstance(value, bool):
        return repr(value)
    for plain in (int, float, str):  # of a subclass, such as numpy.float64, only the number or string counts
        if isinstance(value, plain):
            return plain.__repr__(value)
    if isinstance(value, range):
        value = list(value)
    if param_tree.children(value) is not None:
        return _format_container(value)
    if is_reference(value):
        return f'type/{reference_key(value)}'
    if is_tf_dtype(value):
        return value.name
    if _is_numpy_dtype(value):
        return _numpy_dtype_text(value)
    if is_numpy_scalar_type(type(value)):
        return _format_literal(value.item())
    return type(value).__name__


def _format_enum(member):
    enum_class = type(member)
    if isinstance(member, enum.Flag) and member.name not in enum_class.__members__:
        return f'{enum_class.__name__}.' + '|'.join(single.name for single in enum_class if single in member)
    return f'{enum_class.__name__}.{member.name}'


def _format_container(value):
    pairs = param_tree.children(value)
    if isinstance(value, dict) or param_tree.is_record(value):
        texts = sorted(f'{_format_literal(key)}: {_format_literal(child)}' for key, child in pairs)
        named = f'type/{reference_key(type(value))}' if param_tree.is_record(value) else ''
        return f'{named}{{{", ".join(texts)}}}'
    texts = ', '.join(_format_literal(child) for _, child in pairs)
    if isinstance(value, list):
        return f'[{texts}]'
    return f'({texts},)' if len(pairs) == 1 else f'({texts})'


def value_string(value: Any, indent: str) -> str:
    """Returns a field's value as `str(params)` shows it: nested Params in braces, strings in double quotes."""
    if param_tree.is_params(value):
        return value._ToString(indent + '  ')
    return f'"{value}"' if isinstance(value, str) and not isinstance(value, enum.Enum) else str(_printable(value))


def _printable(value):
    if param_tree.is_params(value):
        return {name: _printable(child) for name, child in value.IterParams()}
    if isinstance(value, (list, tuple, dict)) and param_tree.holds_params(value):
        return param_tree.rebuild(value, [_printable(child) for _, child in param_tree.children(value)])
    return value


def type_name(value: Any) -> str:
    """Returns the name of a value's type in a text with types, such as `int`, `list` or `numpy.float32`."""
    value_type = type(value)
    return ('numpy.' if is_numpy_scalar_type(value_type) else '') + value_type.__name__


def format_shape(container: Any) -> str:
    """Returns the type of a container of Params in a text with types: `list[3]`, `tuple[3]` or `dict['a', 'b']`."""
    if param_tree.is_record(container):
        return f'type/{reference_key(type(container))}'
    if isinstance(container, dict):
        return 'dict' + _format_container(list(container))
    return f'{"list" if isinstance(container, list) else "tuple"}[{len(container)}]'


def format_lines(texts: Mapping[str, str], separator: str) -> str:
    """Returns a `path : text` line for each of `texts`; sorted by path, element 2 of a list before element 10."""
    def natural(path):
        return [int(part) if part.isdecimal() else part for part in re.split('([0-9]+)', path)]
    return ''.join(f'{path} {separator} {texts[path]}\n' for path in sorted(texts, key=natural))


# ---- splitting a text into entries ----------------------------------------------------------------------------------


def shown(text: str) -> str:
    """Returns a text as errors show it: only its beginning if it is long."""
    return text if len(text) <= _NUM_SHOWN else text[:_NUM_SHOWN - 3] + '...'


def split_entries(text: str, separators: str = ':', ends: str = '\n') -> list[Entry]:
    """Splits a text of `path : value` entries.

    Only a value in quotes may span lines. A line that starts with `#` is a comment.

    Args:
        text: the text.
        separators: the possible characters between path and value.
        ends: the characters that end an entry; within quotes and brackets only a newline does.

    Returns:
        list of Entry.

    Raises:
        ValueError: an entry is not a path, a separator and a value, or a quote is not closed.
    """
    entries = []
    position = _next_entry(text, 0, ends)
    while position < len(text):
        match = _ENTRY.match(text, position)
        if not match or match[2] not in separators:
            line = re.split(f'[{ends}]', text[position:position + 80], maxsplit=1)[0]
            form = ' or '.join(f'<key> {separator} <value>' for separator in separators)
            raise ValueError(f'{line!r} is not of the form {form}.')
        if len(match[1]) > _LONGEST_PATH:
            raise ValueError(
                f'{shown(match[1])} has {len(match[1])} characters, more than the path of any field. Correct it.')
        end = _end_of_value(text, match.end(), ends, match[1])
        entries.append(Entry(match[1], text[match.end():end].strip()))
        position = _next_entry(text, end, ends)
    return entries


def _next_entry(text, position, ends):
    return re.compile(rf'(?:[\s{ends}]|#[^\n]*)*').match(text, position).end()


def _end_of_value(text, start, ends, path):
    if text[start:start + 1] in ("'", '"'):
        return _end_of_quoted(text, start, ends, path)
    if text[start:start + 1] in tuple('[({') or REFERENCE.match(text, start):
        return _end_of_bracketed(text, start, ends)
    return re.compile(rf'[^{ends}]*').match(text, start).end()


def _end_of_bracketed(text, start, ends):
    depth = 0
    for match in re.compile(rf'{INLINE_STRING.pattern}|[^\n]|\n').finditer(text, start):
        if match[0] == '\n' or (depth <= 0 and match[0] in ends):
            return match.start()
        depth += (match[0] in tuple('[({')) - (match[0] in tuple('])}'))
    return len(text)


def _end_of_quoted(text, start, ends, path):
    match = STRING.match(text, start)
    if not match:
        raise ValueError(f'{path} : the quote before {text[start + 1:start + 20]!r} is not closed; close it.')
    rest = shown(re.compile(rf'[^{ends}]*').match(text, match.end())[0])
    if rest.strip():
        raise ValueError(f'{path} : {rest.strip()!r} stands after the closing quote; escape quotes in a string.')
    return match.end()


def diff(first: Any, second: Any) -> str:
    """Returns how two Params differ; '' if they are equal.

    Args:
        first: Params, whose values follow `>`.
        second: Params, whose values follow `<`.
    """
    return _diff_fields(first, second, ' ')


def _diff_fields(first, second, indent):
    first, second = _fields(first), _fields(second)
    lines = []
    for key in sorted(first.keys() | second.keys(), key=str):
        if key not in second:
            lines.append(f'>{indent}{key}: {first[key]}\n')
        elif key not in first:
            lines.append(f'<{indent}{key}: {second[key]}\n')
        else:
            lines.append(_diff_values(first[key], second[key], key, indent))
    return ''.join(lines)


def _fields(value):
    return dict(value.IterParams()) if param_tree.is_params(value) else value


def _diff_values(first, second, key, indent):
    if param_tree.equal(first, second):
        return ''
    if all(param_tree.is_params(value) or isinstance(value, dict) for value in (first, second)):
        return f'?{indent}{key}:\n' + _diff_fields(first, second, indent + '  ')
    if all(isinstance(value, (list, tuple)) for value in (first, second)):
        return _diff_sequences(first, second, key, indent)
    return f'>{indent}{key}: {first}\n<{indent}{key}: {second}\n'


def _diff_sequences(first, second, key, indent):
    shared = min(len(first), len(second))
    lines = [_diff_values(first[i], second[i], f'{key}[{i}]', indent) for i in range(shared)]
    lines += [f'>{indent}{key}[{i}]: {first[i]}\n' for i in range(shared, len(first))]
    lines += [f'<{indent}{key}[{i}]: {second[i]}\n' for i in range(shared, len(second))]
    return ''.join(lines) or f'>{indent}{key}: {first}\n<{indent}{key}: {second}\n'  # a list and a tuple of equal items
