"""Params: the nested hyperparameters of layers, tasks, inputs and experiments.

A class defines its fields in a classmethod `Params()`. A user sets fields, and `Instantiate()` makes the object:

    p = Dense.Params().Set(units=10, activation='relu')
    layer = p.Instantiate()

The interface follows Lingvo's hyperparams. This file imports neither TensorFlow nor Keras.
"""

import dataclasses
import re
from collections.abc import Iterator
from typing import Any, Self

from lingpipe import wording
from lingpipe.hyperparams_text import param_tree, text_lines, value_text

RegisterType = value_text.RegisterType
_SEE_ALL = 'print(params)'


def CopyFieldsTo(from_p: 'Params', to_p: 'Params', ignore_unknown_keys: bool = False) -> 'Params':
    """Copy all fields except `cls` from `from_p` to `to_p`, and return `to_p`.

    Args:
        ignore_unknown_keys: whether fields that `to_p` lacks are skipped.

    Raises:
        AttributeError: `to_p` lacks a field and `ignore_unknown_keys` is False.
    """
    for name, value in from_p.IterParams():
        if name != 'cls' and (name in to_p or not ignore_unknown_keys):
            to_p.Set(**{name: value.Copy() if isinstance(value, Params) else value})
    return to_p


@dataclasses.dataclass(slots=True)
class _Param:
    """A field of Params."""
    value: Any
    description: str


class Params:
    """A set of named fields, read and written as attributes. A value may itself be Params.

    Methods that take a name also take a path: `train.max_steps`, `body.layers[3].units`, `towers['left'].units`.
    """

    def __init__(self) -> None:
        self.__dict__['_params'] = {}
        self.__dict__['_immutable'] = False

    def Define(self, name: str, default: Any, description: str) -> None:
        """Add a field.

        Args:
            name: lower-case letters, digits and underscores, not beginning with a digit.
            description: purpose of the field, with unit and shape.

        Raises:
            AttributeError: the field exists already.
            ValueError: `name` has other characters, or is an attribute of Params, such as `_params`.
        """
        self._CheckMutable()
        if not isinstance(name, str) or not self._IsLegalName(name):
            raise ValueError(f'{name!r} cannot name a parameter; use lower-case letters, digits and underscores.')
        if name in self.__dict__ or any(name in vars(base) for base in type(self).__mro__):
            raise ValueError(f'{name!r} is a name that Params itself uses; choose another name.')
        if name in self._params:
            raise AttributeError(f'Parameter {name} is already defined; set it instead.')
        self._params[name] = _Param(default, description)

    def _IsLegalName(self, name):
        return re.fullmatch('[a-z_][a-z0-9_]*', name) is not None

    def __getattr__(self, name: str) -> Any:
        params = self.__dict__.get('_params', {})  # absent while unpickling
        if name in params:
            return params[name].value
        if name.startswith('_'):  # libraries probe every object for such names, so be quick
            raise AttributeError(f'{name} is not a parameter.')
        raise AttributeError(f'{name} is not a parameter{wording.did_you_mean(name, params, see_all=_SEE_ALL)}')

    def __setattr__(self, name: str, value: Any) -> None:
        self._CheckMutable()
        if name not in self._params:
            nearest = wording.did_you_mean(name, self._params, see_all=_SEE_ALL)
            raise AttributeError(f'{name} is not a parameter{nearest}')
        self._params[name].value = value

    def __dir__(self) -> list[str]:
        return self.GetKeys()

    def __contains__(self, name: object) -> bool:
        return name in self._params

    def __len__(self) -> int:
        return len(self._params)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Params) and param_tree.equal(dict(self.IterParams()), dict(other.IterParams()))

    def __str__(self) -> str:
        return self.ToText()

    def __repr__(self) -> str:
        return repr(dict(self.IterParams()))

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        memo[id(self)] = copied = self.Copy()
        return copied

    def Copy(self) -> Self:
        """Return a deep copy that shares classes, functions, modules and tensors. A copy of frozen Params is frozen."""
        copied = type(self).__new__(type(self))
        copied.__dict__.update(self.__dict__)
        copied.__dict__['_params'] = {}
        for name, param in self._params.items():
            copied._params[name] = _Param(param_tree.copy_value(param.value), param.description)
        return copied

    def Freeze(self) -> None:
        """Make these Params immutable, but not nested Params. Later changes raise TypeError."""
        self.__dict__['_immutable'] = True

    def IsImmutable(self) -> bool:
        """Return whether these Params are frozen."""
        return self._immutable

    def _CheckMutable(self):
        if self._immutable:
            raise TypeError('This Params instance is immutable; change a Copy() made before Freeze().')

    def Set(self, **kwargs: Any) -> Self:
        """Set fields, and return self. `Set(**{'train.max_steps': 5})` sets a field of nested Params.

        Raises:
            AttributeError: there is no such field.
        """
        self._CheckMutable()
        for name, value in kwargs.items():
            param_tree.assign(self, param_tree.parse_path(name), value)
        return self

    def Get(self, name: str) -> Any:
        """Return the value at a path such as `body.layers[3].units`.

        Raises:
            AttributeError: there is no such field or element.
        """
        return param_tree.descendant(self, param_tree.parse_path(name))

    def Delete(self, *names: str) -> Self:
        """Remove fields of these Params, and return self.

        Raises:
            AttributeError: there is no such field.
        """
        self._CheckMutable()
        for name in names:
            getattr(self, name)  # raises the error
            del self._params[name]
        return self

    def IterParams(self) -> Iterator[tuple[str, Any]]:
        """Yield (name, value) of every field, sorted by name."""
        for name in self.GetKeys():
            yield name, self._params[name].value

    def GetKeys(self) -> list[str]:
        """Return the sorted names of the fields."""
        return sorted(self._params)

    def ToText(self) -> str:
        """Return all fields as a text for FromText, in sorted lines `path : value`.

        A value is written as in Python, and None as `NoneType`. A class or function becomes `type/module/Name`. A
        `tf.DType` becomes its name. Any other object becomes the name of its type, and FromText ignores the line.
        """
        return text_lines.join(self._Texts()[0])

    def _Texts(self):
        """Return two dictionaries: {path: text of the value} and {path: name of the type}."""
        texts, kinds = {}, {}
        for path, value in param_tree.walk(self):
            if not param_tree.holds_params(value):
                texts[path] = value_text.format_value(value)
                kinds[path] = type(value).__name__
            elif not isinstance(value, Params):  # a container of Params has only a type
                kinds[path] = text_lines.shape(value)
        return texts, kinds

    def FromText(self, text: str) -> Self:
        """Set each field that has a line in `text`, and return self. Other fields do not change.

        A value is read as the current type of the field. A list of Params is changed element by element. A line
        `x.cls : type/module/Name` with another class replaces `x` by the Params of that class.

        Args:
            text: `path : value` lines; lines that begin with `#` are comments.

        Raises:
            AttributeError: there is no such field or element.
            ValueError: a line is not `path : value`, or a value cannot be read.
        """
        self._CheckMutable()
        text_lines.read(self, text_lines.split(text), {})
        return self

    def ToTextWithTypes(self) -> str:
        """Return the text of ToText, two blank lines, and a `path : type` line for each field."""
        return '\n\n'.join(map(text_lines.join, self._Texts()))

    def FromTextWithTypes(self, text: str) -> Self:
        """Set fields from the text of ToTextWithTypes, and return self. Values get the types in the text."""
        fields, _, kinds = text.rstrip().rpartition('\n\n')
        if kinds and not fields:
            raise ValueError('The text has no types; use FromText, or write it with ToTextWithTypes.')
        self._CheckMutable()
        text_lines.read(self, text_lines.split(fields), dict(text_lines.split(kinds)))
        return self


class InstantiableParams(Params):
    """Params that can instantiate their class `cls`."""

    def __init__(self, cls: type | None = None) -> None:
        super().__init__()
        self.Define('cls', cls, 'The class that these Params are for.')

    def Instantiate(self, **kwargs: Any) -> Any:
        """Return `cls(params, **kwargs)`.

        Args:
            **kwargs: other arguments of the constructor, such as objects shared between layers.

        Raises:
            ValueError: `cls` is None.
        """
        if self.cls is None:
            raise ValueError('cls is None, so there is nothing to instantiate; set cls to a class.')
        return self.cls(self, **kwargs)


def ApplyOverrides(params: Params, text: str) -> Params:
    """Set fields from a text such as `'train.max_steps=100; body.num_partitions=4'`, and return `params`.

    A newline or `;` ends an entry. `:` or `=` separates path and value. Values are read as in FromText, except
    that an unknown word without quotes becomes a string.

    Raises:
        AttributeError: there is no such field or element.
        ValueError: an entry is not `path = value`, or the value does not have the field's current type.
    """
    params._CheckMutable()
    text_lines.read(params, text_lines.split(text), {}, words_are_strings=True)
    return params
