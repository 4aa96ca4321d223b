"""Reading the value of a field: text is read as the type that the field's present value has."""

import enum
import sys

from lingpipe.params_text import known_objects, literals, param_tree, text_format


def parse_value(text, current, known, type_name=None, words_are_strings=False):
    """Returns the value that `text` gives to a field.

    Args:
        text: the value's text.
        current: the field's present value; a bool, int, float, string, enum, dtype or record decides how text is read.
        known: the KnownObjects that `text` may name.
        type_name: name of the type that the value has, where a text with types says so; then `current` does not matter.
        words_are_strings: whether a word without quotes that is nothing else is a string, whatever `current` is.

    Raises:
        ValueError: with the end of a sentence that begins with the field and the text.
    """
    if text in ('None', 'NoneType'):
        return None
    wanted_type = type_name or text_format.type_name(current)
    if wanted_type in _PLAIN_PARSERS:
        return _PLAIN_PARSERS[wanted_type](text)
    if wanted_type == 'str':
        return _parse_string(text, known)
    if wanted_type.startswith('numpy.'):
        return _parse_numpy_scalar(text, wanted_type, known)
    if text == text_format.format_value(current):
        return current  # also keeps what no text can spell, such as a lock
    if type_name is None:
        return _parse_like(current, text, known, words_are_strings)
    return literals.parse_literal(text, known)


def _parse_like(current, text, known, words_are_strings):
    if current is None and text in ('true', 'false'):
        return text == 'true'
    is_word = literals.WORD.fullmatch(_unquoted(text)) is not None
    if isinstance(current, enum.Enum) and is_word:
        return _parse_enum(_unquoted(text), type(current), known)
    if text_format.is_tf_dtype(current) and is_word:
        return _parse_tf_dtype(_unquoted(text))
    if param_tree.is_record(current) and text.startswith('{'):
        return _changed_record(current, text, known)
    return literals.parse_literal(text, known, words_are_strings)


def _unquoted(text):
    return text_format.unquote(text) if text_format.STRING.fullmatch(text) else text


def _parse_bool(text):
    word = _unquoted(text).lower()
    if word not in ('true', 'false'):
        raise ValueError('is not a bool; write True or False.')
    return word == 'true'


def _parse_int(text):
    word = _unquoted(text)
    if literals.INT.fullmatch(word):
        return int(word, 0)
    if word == 'auto':
        return word  # many numbers may be left to the program; it checks which
    is_integral = literals.FLOAT.fullmatch(word) and float(word).is_integer()
    raise ValueError('is not an int; write ' + (f'{float(word):.0f}.' if is_integral else 'digits only.'))


def _parse_float(text):
    word = _unquoted(text)
    if literals.INT.fullmatch(word):
        return float(int(word, 0))
    if literals.FLOAT.fullmatch(word):
        return float(word)
    raise ValueError('is not a float; write a number such as 0.1, 1e-3 or inf.')


_PLAIN_PARSERS = {'bool': _parse_bool, 'int': _parse_int, 'float': _parse_float}


def _parse_string(text, known):
    """Returns a string, or the number, list or known object that an unquoted text spells.

    Many fields hold a word or something else: 'auto' or 4, 'flops' or [2, 5].
    """
    if not text:
        return ''
    try:
        return literals.parse_literal(text, known, words_are_strings=True)
    except ValueError:
        if text_format.REFERENCE.match(text):
            raise
        return text  # such as a file pattern '[a-f]*.txt' without quotes


def _parse_numpy_scalar(text, type_name, known):
    scalar_type = getattr(sys.modules.get('numpy'), type_name.removeprefix('numpy.'), None)
    if not isinstance(scalar_type, type) or not text_format.is_numpy_scalar_type(scalar_type):
        raise ValueError(f'is said to be {type_name}, which is not the type of a number or string.')
    try:
        return scalar_type(literals.parse_literal(text, known))
    except TypeError as error:
        raise ValueError(f'is not a {type_name}.') from error


def _parse_enum(text, enum_class, known):
    class_name, dot, names = text.rpartition('.')
    if not dot or class_name == enum_class.__name__:
        return known_objects.enum_member(enum_class, names)
    return literals.parse_literal(text, known)


def _parse_tf_dtype(name):
    try:
        return sys.modules['tensorflow'].as_dtype(name)
    except TypeError as error:
        raise ValueError('is not the name of a dtype; write one such as float32.') from error


def _changed_record(current, text, known):
    """Returns a copy of `current` with the fields that `text`, a dict, gives; a field's text may stand in quotes."""
    fields = dict(param_tree.children(current))
    for name, value in literals.parse_literal(text, known).items():
        is_text = isinstance(value, str) and name in fields and not isinstance(fields[name], str)
        fields[name] = parse_value(value, fields[name], known, words_are_strings=True) if is_text else value
    return literals.make_record(type(current), fields)
