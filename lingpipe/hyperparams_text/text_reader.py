"""Reading a text into Params: what each entry changes, and in which order."""

import enum
import re
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from lingpipe.hyperparams_text import known_objects, literals, param_tree, text_format

_SHAPE = re.compile(r'(list|tuple)\[([0-9]+)\]|dict(\[.*\])', re.DOTALL)
_MAX_LENGTH = 100_000  # of a list in a text: far more than any model needs, far less than fills the memory
_MAX_DIGITS = 9
_CLASS_CHANGE, _SHAPE_CHANGE, _VALUE_CHANGE = range(3)  # the order of changes of equal depth


def parse_value(text: str, current: Any, known: known_objects.KnownObjects, type_name: str | None = None,
                words_are_strings: bool = False) -> Any:
    """Returns the value of a field from a text.

    Args:
        text: the value's text.
        current: the field's current value; the type of a bool, int, float, string, enum, dtype or record decides how
            the text is read.
        known: the KnownObjects that `text` may name.
        type_name: name of the value's type in a text with types, which replaces the type of `current`; or None.
        words_are_strings: whether an unknown word without quotes is a string, whatever `current` is.

    Raises:
        ValueError: the text is no such value; the message is the end of a sentence that begins with field and text.
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
        return current  # also keeps values that no text can represent, such as a lock
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
        return literals.parse_int(word)
    if word == 'auto':
        return word  # some numbers may be 'auto'; the program checks which
    is_integral = literals.FLOAT.fullmatch(word) and float(word).is_integer()
    raise ValueError('is not an int; write ' + (f'{float(word):.0f}.' if is_integral else 'digits only.'))


def _parse_float(text):
    word = _unquoted(text)
    if literals.INT.fullmatch(word):
        return _as_float(literals.parse_int(word))
    if literals.FLOAT.fullmatch(word):
        return float(word)
    raise ValueError('is not a float; write a number such as 0.1, 1e-3 or inf.')


def _as_float(number):
    try:
        return float(number)
    except OverflowError as error:
        raise ValueError('is larger than any float; write inf.') from error


_PLAIN_PARSERS = {'bool': _parse_bool, 'int': _parse_int, 'float': _parse_float}


def _parse_string(text, known):
    """Returns a string, or the number, list or known object of an unquoted text.

    Many fields have a word or another value: 'auto' or 4, 'flops' or [2, 5].
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
    except (TypeError, OverflowError) as error:
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
    """Returns a copy of `current` with the fields of `text`, a dict; the text of a field may be in quotes."""
    fields = dict(param_tree.children(current))
    for name, value in literals.parse_literal(text, known).items():
        is_text = isinstance(value, str) and name in fields and not isinstance(fields[name], str)
        fields[name] = parse_value(value, fields[name], known, words_are_strings=True) if is_text else value
    return literals.make_record(type(current), fields)


def read(params: Any, entries: Iterable[text_format.Entry], kinds: Mapping[str, str],
         words_are_strings: bool = False) -> None:
    """Sets the fields of `params` that a text names.

    Outer fields are set first, so that Params of a new class, or a longer list, exist before their fields are set.

    Args:
        params: Params.
        entries: list of text_format.Entry.
        kinds: {path: type} as ToTextWithTypes writes it (`int`, `list[3]`, ...); may be empty.
        words_are_strings: whether an unknown word without quotes is a string, also if the field is None.
    """
    _separate_shared_params(params, set())
    reader = _Reader(params, kinds, words_are_strings)
    shapes = {path: kind for path, kind in kinds.items() if _SHAPE.fullmatch(kind)}
    changes = [_change(path, text) for path, text in entries]
    changes += [(param_tree.parse_path(path), _SHAPE_CHANGE, kind) for path, kind in shapes.items()]
    for steps, change, text in sorted(changes, key=lambda item: (len(item[0]), item[1])):
        try:
            reader.apply(steps, change, text)
        except ValueError as error:
            raise ValueError(f'{param_tree.format_path(steps)} : {text_format.shown(text)} {error}') from error


def _change(path, text):
    steps = param_tree.parse_path(path)
    is_class_change = len(steps) > 1 and steps[-1] == param_tree.Step(False, 'cls')
    return steps, _CLASS_CHANGE if is_class_change else _VALUE_CHANGE, text


def _separate_shared_params(value, seen):
    """Returns `value` with copies of Params that occur more than once, as in `[p] * 8`.

    Otherwise a line for one element of the list would change all elements.
    """
    if param_tree.is_params(value):
        if id(value) in seen:
            return value.Copy()
        seen.add(id(value))
        for name, child in value.IterParams():
            separate = _separate_shared_params(child, seen)
            if separate is not child and not value.IsImmutable():
                setattr(value, name, separate)
        return value
    pairs = param_tree.children(value) or []
    separate = [_separate_shared_params(child, seen) for _, child in pairs]
    if all(new is old for new, (_, old) in zip(separate, pairs)):
        return value
    return param_tree.rebuild(value, separate)


class _Reader:
    """Applies entries to Params, one after another."""

    def __init__(self, params, kinds, words_are_strings):
        self._params = params
        self._kinds = kinds
        self._words_are_strings = words_are_strings
        self._known = known_objects.KnownObjects(params)

    def apply(self, steps: list[param_tree.Step], change: int, text: str) -> None:
        """Applies one change, described by `text`, to the value at `steps`."""
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
        kind = self._kinds.get(param_tree.format_path(steps))
        return parse_value(text, current, self._known, kind, self._words_are_strings)

    def _replace_params(self, steps, text):
        """Replaces Params, or None, by Params of the class that `text` names; returns whether it did."""
        owner = param_tree.descendant(self._params, steps[:-1])
        is_params = param_tree.is_params(owner)
        if param_tree.holds_params(owner) and not (is_params and 'cls' in owner):
            return False
        old_class = owner.cls if is_params else None
        new_class = self._parse(steps, text, old_class)
        if new_class is old_class:
            return False
        fresh = known_objects.fresh_params(new_class)
        if fresh is None:
            if old_class is None:
                raise ValueError('has no known Params; give hyperparams.RegisterType a function that makes them.')
            return False
        if old_class is not None:
            _keep_changes(owner, known_objects.fresh_params(old_class), fresh)
        param_tree.assign(self._params, steps[:-1], fresh)
        self._known.add_held_by(fresh)
        return True

    def _reshape(self, steps, kind):
        current = param_tree.descendant(self._params, steps)
        sequence, length, keys = _SHAPE.fullmatch(kind).groups()
        if keys:
            keys = parse_value(keys, None, self._known)
            shaped = {key: current.get(key) if isinstance(current, dict) else None for key in keys}
        elif len(length) > _MAX_DIGITS or int(length) > _MAX_LENGTH:
            raise ValueError(f'is longer than {_MAX_LENGTH} elements.')
        else:
            kept = list(current) if isinstance(current, (list, tuple)) else []
            shaped = {'list': list, 'tuple': tuple}[sequence]((kept + [None] * int(length))[:int(length)])
        param_tree.assign(self._params, steps, shaped)


def _keep_changes(old, old_defaults, new):
    """Copies the user's changes of `old` to `new`: values that are not defaults, and deleted fields."""
    defaults = dict(old_defaults.IterParams()) if old_defaults is not None else {}
    for name, value in old.IterParams():
        is_default = name in defaults and param_tree.equal(value, defaults[name])
        if name in new and name != 'cls' and not is_default:
            new.Set(**{name: value})
    new.Delete(*[name for name in defaults if name not in old and name in new])
