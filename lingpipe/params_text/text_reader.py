"""Reading a text into Params: which entry changes what, and in which order."""

import re

from lingpipe.params_text import known_objects, param_tree, value_parser

_SHAPE = re.compile(r'(list|tuple)\[([0-9]+)\]|dict(\[.*\])', re.DOTALL)
_MAX_LENGTH = 100_000  # of a list that a text makes: far above any model, far below what fills a memory
_CLASS_CHANGE, _SHAPE_CHANGE, _VALUE_CHANGE = range(3)  # the order of changes of equal depth


def read(params, entries, kinds, words_are_strings=False):
    """Sets the fields of `params` that a text names.

    Outer ones are set first, so that Params of a new class, or a longer list, stand before their fields are set.

    Args:
        params: Params.
        entries: list of text_format.Entry.
        kinds: {path: type} as ToTextWithTypes writes it (`int`, `list[3]`, ...); may be empty.
        words_are_strings: whether an unknown word without quotes is a string also where the field holds None.
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
            shown = text if len(text) <= 80 else text[:77] + '...'
            raise ValueError(f'{param_tree.format_path(steps)} : {shown} {error}') from error


def _change(path, text):
    steps = param_tree.parse_path(path)
    is_class_change = len(steps) > 1 and steps[-1] == param_tree.Step(False, 'cls')
    return steps, _CLASS_CHANGE if is_class_change else _VALUE_CHANGE, text


def _separate_shared_params(value, seen):
    """Returns `value` with a copy in place of each Params that occurs a second time, as in `[p] * 8`.

    Otherwise a line for one element of the list would change all of them.
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
    """Applies one entry after the other to Params."""

    def __init__(self, params, kinds, words_are_strings):
        self._params = params
        self._kinds = kinds
        self._words_are_strings = words_are_strings
        self._known = known_objects.KnownObjects(params)

    def apply(self, steps, change, text):
        """Changes what lies at `steps` as `text` says."""
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
        return value_parser.parse_value(text, current, self._known, kind, self._words_are_strings)

    def _replace_params(self, steps, text):
        """Puts Params of the class that `text` names where there are others or none; returns whether it did."""
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
            keys = value_parser.parse_value(keys, None, self._known)
            shaped = {key: current.get(key) if isinstance(current, dict) else None for key in keys}
        elif int(length) > _MAX_LENGTH:
            raise ValueError(f'is longer than {_MAX_LENGTH} elements.')
        else:
            kept = list(current) if isinstance(current, (list, tuple)) else []
            shaped = {'list': list, 'tuple': tuple}[sequence]((kept + [None] * int(length))[:int(length)])
        param_tree.assign(self._params, steps, shaped)


def _keep_changes(old, old_defaults, new):
    """Gives `new` the changes that the user made to `old`: values other than the defaults, and deleted fields."""
    defaults = dict(old_defaults.IterParams()) if old_defaults is not None else {}
    for name, value in old.IterParams():
        is_default = name in defaults and param_tree.equal(value, defaults[name])
        if name in new and name != 'cls' and not is_default:
            new.Set(**{name: value})
    new.Delete(*[name for name in defaults if name not in old and name in new])
