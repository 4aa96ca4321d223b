"""Params for any Keras layer, with one field per argument of the constructor.

An override such as `body.layers[3].units=10` can change a field of these Params:

    layers.KerasParams(keras.layers.Dense, units=512, activation='relu')
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import keras

from lingpipe import hyperparams
from lingpipe.hyperparams_text import param_tree
from lingpipe.layers import base_layer


class REQUIRED:
    """The value of an argument that has no default and is not set."""


def KerasParams(cls: Callable, **arguments: Any) -> hyperparams.InstantiableParams:
    """Return Params of a Keras layer, with one field per argument of its constructor.

    Give each inner layer as Params. Other Keras objects, such as initializers, are replaced by their Params. Each call
    of `Instantiate` makes new inner objects.

    Args:
        cls: subclass of keras.layers.Layer, another class of Keras objects, or a function.
        **arguments: arguments of the constructor.

    Raises:
        AttributeError: the constructor has no such argument.
        NotImplementedError: a value is a Keras object without `get_config()`.
        TypeError: `cls` already has Params, or a value is a layer.
    """
    if hasattr(cls, 'Params'):
        raise TypeError(f'{cls.__name__} has Params of its own; use {cls.__name__}.Params().')
    hyperparams.RegisterType(cls, params=functools.partial(KerasParams, cls))
    params = _KerasObjectParams(cls)
    for name, value in arguments.items():
        setattr(params, name, value)
    return params


def require(params: Any, base: type, field: str, advice: str) -> None:
    """Raise ValueError unless `params` are the Params of a subclass of `base`. The message names `field`."""
    cls = getattr(params, 'cls', None)
    if not (isinstance(params, hyperparams.InstantiableParams) and isinstance(cls, type) and issubclass(cls, base)):
        received = getattr(cls, '__name__', repr(params))
        kind = base.__name__.lower()
        raise ValueError(f'{field} is {received}, but it must be the params of a Keras {kind}. {advice}')


class _KerasObjectParams(hyperparams.InstantiableParams):
    """Params of a class or function, with one field per argument."""

    def __init__(self, cls):
        super().__init__(cls)
        for name, default in _defaults(cls).items():
            self.Define(name, param_tree.copy_value(default), f'Argument of {cls.__name__}.')

    def _IsLegalName(self, name):
        return name.isidentifier()  # the layer's author chose it

    def __setattr__(self, name, value):
        super().__setattr__(name, _described(value, f'{self.cls.__name__}.{name}'))

    def Instantiate(self, **kwargs):
        """Call the class or function with the fields that differ from their defaults."""
        is_layer = inspect.isclass(self.cls) and issubclass(self.cls, keras.layers.Layer)
        dtype = kwargs.get('dtype', _instantiated(self.dtype)) if is_layer and 'dtype' in self else None
        with base_layer.default_policy(dtype):  # also of the layers inside it
            return self._instantiate(kwargs)

    def _instantiate(self, kwargs):
        defaults = _defaults(self.cls)
        given = {name: _instantiated(value) for name, value in self.IterParams()
                 if name not in kwargs and _is_given(name, value, defaults)} | kwargs
        missing = [name for name, value in self.IterParams() if value is REQUIRED and name not in kwargs]
        try:
            return self.cls(**given)
        except TypeError as error:
            if not missing:
                raise
            raise ValueError(f'{self.cls.__name__} needs {" and ".join(missing)}; set it, as in '
                             f'KerasParams({self.cls.__name__}, {missing[0]}=...).') from error


def _is_given(name, value, defaults):
    if name == 'cls' or value is REQUIRED:
        return False
    return name not in defaults or not param_tree.equal(value, defaults[name])


def _instantiated(value):
    if isinstance(value, hyperparams.InstantiableParams):
        return value.Instantiate()
    return param_tree.replace_children(value, _instantiated)


def _described(value, field):
    """Replace every Keras object in `value` by its Params."""
    if isinstance(value, keras.layers.Layer):
        name = type(value).__name__
        raise TypeError(f'{field} is given a {name} object, which all that is instantiated would share; '
                        f'give KerasParams({name}, ...) instead.')
    value = param_tree.replace_children(value, lambda child: _described(child, field))
    if isinstance(value, type) or not hasattr(value, 'get_config') or not hasattr(value, 'from_config'):
        return value
    return KerasParams(type(value), **value.get_config())


# ---- the arguments of a constructor ---------------------------------------------------------------------------------


@functools.cache
def _defaults(cls):
    """Return the default value of each keyword argument of `cls`."""
    if not inspect.isclass(cls):
        return _named(inspect.signature(cls))
    found = {}
    # From the constructors of `cls` and of its base classes, up to the first constructor without **kwargs. If a
    # subclass has arguments, required arguments of its base class are left out, because the subclass passes them.
    for constructor in (vars(base)['__init__'] for base in cls.__mro__[:-1] if '__init__' in vars(base)):
        signature = inspect.signature(constructor)
        found = {name: default for name, default in _named(signature).items()
                 if name != 'self' and not (found and default is REQUIRED)} | found
        if constructor is keras.layers.Layer.__init__ or all(
                each.kind != each.VAR_KEYWORD for each in signature.parameters.values()):
            break
    return found


def _named(signature):
    return {each.name: REQUIRED if each.default is each.empty else each.default
            for each in signature.parameters.values() if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)}


# ---- what a text may name -------------------------------------------------------------------------------------------

# Layers that run code or read files that their arguments name: a text may set their fields, but not introduce them.
_NOT_FROM_TEXT = ('Lambda', 'TFSMLayer', 'TorchModuleWrapper', 'JaxLayer', 'FlaxLayer')


_MODULES = (
    keras.layers, keras.initializers, keras.regularizers, keras.constraints, keras.dtype_policies, keras.losses,
    keras.metrics, keras.optimizers, keras.optimizers.schedules)


def _register_keras_objects():
    for module in _MODULES:
        for name, value in vars(module).items():
            if inspect.isclass(value) and name == value.__name__ and name not in _NOT_FROM_TEXT:
                hyperparams.RegisterType(value, functools.partial(KerasParams, value), f'{module.__name__}/{name}')
    for name, value in vars(keras.activations).items():
        if inspect.isfunction(value) and name not in ('deserialize', 'get', 'serialize'):
            hyperparams.RegisterType(value, key=f'keras.activations/{name}')
    hyperparams.RegisterType(REQUIRED)


_register_keras_objects()
