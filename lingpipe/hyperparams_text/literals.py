"""Reading values whose text shows their type: numbers, strings, containers, records and names of known objects.

Reading is safe: a text is parsed, never evaluated, and names are only looked up among the KnownObjects.
"""

import ast
import dataclasses
import re
import sys
from collections.abc import Mapping
from typing import Any

from lingpipe import spelling
from lingpipe.hyperparams_text import known_objects, text_format

INT = re.compile(r'[-+]?(?:0|[1-9][0-9_]*|0[xX][0-9a-fA-F]+|0[bB][01]+)')
FLOAT = re.compile(r'[-+]?(?:(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|[0-9]+[eE][-+]?[0-9]+|inf|nan)')
WORD = re.compile(r"""[^\s,:\[\](){}'"]+""")
_MOST_DIGITS = 400  # more than the largest float has; work with millions of them takes hours
_NUMPY_DTYPE = re.compile(r'dtype/([<>|=]?[A-Za-z0-9_]+)')
_KEYWORDS = {'True': True, 'False': False, 'None': None, 'NoneType': None}
_MAX_DEPTH = 100  # of nested brackets: far above any real value, far below Python's recursion limit
_UNKNOWN = object()


def parse_literal(text: str, known: known_objects.KnownObjects, words_are_strings: bool = False) -> Any:
    """Returns the value of a whole text.

    Args:
        text: the text, without blanks around it.
        known: the KnownObjects that it may name.
        words_are_strings: whether an unknown word without quotes is a string.

    Raises:
        ValueError: the text is no value; the message is the end of a sentence that begins with the text.
    """
    if not text:
        raise ValueError('has no value.')
    parser = _LiteralParser(text, known, words_are_strings)
    if text_format.STRING.fullmatch(text):
        return text_format.unquote(text)
    if text[0] in '[({' or text_format.REFERENCE.match(text):
        return parser.parse()
    return parser.word_value(text)


def parse_int(word: str) -> int:
    """Returns the number of a text that INT matches.

    Raises:
        ValueError: it has too many digits.
    """
    if len(word) > _MOST_DIGITS:
        raise ValueError(f'has {len(word)} digits; no number here needs more than {_MOST_DIGITS}.')
    return int(word, 0)


def make_record(record_class: type[Any], fields: Mapping[Any, Any]) -> Any:
    """Returns a named tuple or dataclass object with the given {name: value}.

    Raises:
        ValueError: a field is missing or unknown.
    """
    is_tuple = issubclass(record_class, tuple)
    names = record_class._fields if is_tuple else [field.name for field in dataclasses.fields(record_class)]
    for name in fields:
        if name not in names:
            nearest = spelling.did_you_mean(str(name), names)
            raise ValueError(f'has {text_format.shown(str(name))!r}, which is no field{nearest}')
    missing = [name for name in names if name not in fields]
    if missing:
        raise ValueError(f'lacks the field {missing[0]} of {record_class.__name__}.')
    return record_class(**fields) if is_tuple else _make_dataclass(record_class, fields)


def _make_dataclass(record_class, fields):
    late = [field.name for field in dataclasses.fields(record_class) if not field.init]
    record = record_class(**{name: value for name, value in fields.items() if name not in late})
    for name in late:
        object.__setattr__(record, name, fields[name])  # also writes the fields of a frozen dataclass
    return record


class _LiteralParser:
    """A recursive descent parser of one text."""

    def __init__(self, text, known, words_are_strings):
        self._text = text
        self._known = known
        self._words_are_strings = words_are_strings
        self._position = 0

    def parse(self) -> Any:
        """Returns the value of the text, which must have nothing after it."""
        value = self._value(0)
        if self._peek():
            raise ValueError(f'has {text_format.shown(self._text[self._position:])!r} after its end.')
        return value

    def _peek(self):
        while self._text[self._position:self._position + 1].isspace():
            self._position += 1
        return self._text[self._position:self._position + 1]

    def _take(self, character):
        taken = self._peek() == character
        self._position += taken
        return taken

    def _expect(self, character):
        if not self._take(character):
            found = self._text[self._position:self._position + 10]
            raise ValueError(f'has {found!r} where {character!r} should stand.' if found else f'lacks a {character!r}.')

    def _value(self, depth):
        if depth > _MAX_DEPTH:
            raise ValueError(f'is nested more than {_MAX_DEPTH} brackets deep.')
        if self._take('['):
            return self._items(']', depth)[0]
        if self._take('('):
            items, has_comma = self._items(')', depth)
            return tuple(items) if has_comma or not items else items[0]
        if self._take('{'):
            return self._pairs(depth)
        if self._peek() in ("'", '"'):
            return self._string()
        return self._word(depth)

    def _items(self, closing, depth):
        items, has_comma = [], False
        while not self._take(closing):
            items.append(self._value(depth + 1))
            if not self._take(','):
                self._expect(closing)
                break
            has_comma = True
        return items, has_comma

    def _pairs(self, depth):
        pairs = {}
        while not self._take('}'):
            key = self._value(depth + 1)
            self._expect(':')
            value = self._value(depth + 1)
            try:
                pairs[key] = value
            except TypeError as error:
                raise ValueError(f'has {text_format.shown(repr(key))}, which cannot be the key of a dict.') from error
            if not self._take(','):
                self._expect('}')
                break
        return pairs

    def _string(self):
        match = text_format.INLINE_STRING.match(self._text, self._position)
        if not match:
            raise ValueError('has a quote that is not closed.')
        self._position = match.end()
        try:
            return ast.literal_eval(match[0])
        except (SyntaxError, ValueError) as error:
            raise ValueError(
                f'has {text_format.shown(match[0])}, in which a backslash is wrong; double it.') from error

    def _word(self, depth):
        match = WORD.match(self._text, self._position)
        if not match:
            raise ValueError(f'has {self._peek()!r} where a value should stand.' if self._peek() else 'ends too early.')
        self._position = match.end()
        reference = text_format.REFERENCE.fullmatch(match[0])
        if reference and self._take('{'):
            return self._record(self._known.find(reference[1]), depth)
        return self.word_value(match[0])

    def _record(self, record_class, depth):
        is_record_class = dataclasses.is_dataclass(record_class) or hasattr(record_class, '_fields')
        if not (isinstance(record_class, type) and is_record_class):
            raise ValueError('has fields after a name that is neither that of a named tuple nor of a dataclass.')
        return make_record(record_class, self._pairs(depth))

    def word_value(self, word: str) -> Any:
        """Returns the value of a text without brackets and quotes."""
        if word in _KEYWORDS:
            return _KEYWORDS[word]
        if INT.fullmatch(word):
            return parse_int(word)
        if FLOAT.fullmatch(word):
            return float(word)
        reference = text_format.REFERENCE.fullmatch(word)
        if reference:
            return self._known.find(reference[1])
        value = self._enum_or_dtype(word)
        if value is _UNKNOWN and not self._words_are_strings:
            raise ValueError(f'has {text_format.shown(word)!r}, which is neither a number nor a known name; put a '
                             'string in quotes.')
        return word if value is _UNKNOWN else value

    def _enum_or_dtype(self, word):
        member = self._known.find_enum(word)
        if member is not None:
            return member
        numpy_dtype = _NUMPY_DTYPE.fullmatch(word)
        if numpy_dtype and 'numpy' in sys.modules:
            return _numpy_dtype(numpy_dtype[1])
        if 'tensorflow' in sys.modules and not self._words_are_strings:
            return _tf_dtypes().get(word, _UNKNOWN)
        return _UNKNOWN


def _numpy_dtype(name):
    try:
        return sys.modules['numpy'].dtype(name)
    except TypeError as error:
        raise ValueError('names no numpy dtype.') from error


def _tf_dtypes():
    dtypes = vars(sys.modules['tensorflow'].dtypes).values()
    return {dtype.name: dtype for dtype in dtypes if text_format.is_tf_dtype(dtype)}
