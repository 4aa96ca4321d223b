"""The base class of layers, and helpers for dtype policies, variables and the training step."""

import contextlib
import functools
import random
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Self

import keras
import tensorflow as tf

from lingpipe import hyperparams, patches, wording
from lingpipe.private_api import global_state

MIXED_FLOAT16 = 'mixed_float16'
NORM_EPSILON = 1e-6  # added to the variance in layer norms
DTYPE_POLICIES = ['float32', 'mixed_bfloat16', MIXED_FLOAT16]
_local = threading.local()
_QUEUE, _SCOPE = 'uninitialized_variables', 'stateless_scope'


class LayerParams(hyperparams.InstantiableParams):
    """The Params of a layer. Child layers have the same dtype policy by default."""

    def Instantiate(self, **kwargs: Any) -> 'BaseLayer':
        with default_policy(self.dtype_policy):
            return super().Instantiate(**kwargs)


class BaseLayer(keras.layers.Layer):
    """A Keras layer whose constructor takes one Params object.

    A subclass adds fields in `Params()`, creates child layers in `__init__`, and computes in `call`. The method `build`
    must build each child layer, because LingPipe counts weights before their allocation.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        hyperparams.RegisterType(cls)
        keras.saving.register_keras_serializable(package=cls.__module__.partition('.')[0])(cls)

    @classmethod
    def Params(cls) -> LayerParams:
        """Return the Params of this layer class."""
        p = LayerParams(cls)
        p.Define('name', None, 'Name of the layer; None lets the enclosing stack choose one.')
        p.Define(
            'dtype_policy', None, "Keras dtype policy of the layer, such as 'mixed_bfloat16'; None: the global policy.")
        return p

    def __init__(self, params: hyperparams.Params, **kwargs: Any) -> None:
        super().__init__(name=params.name, **{'dtype': params.dtype_policy, **kwargs})
        self._policy_of_layers = keras.dtype_policies.get(params.dtype_policy).name
        self.params = params.Copy()
        self.params.Freeze()

    def get_config(self) -> dict[str, Any]:
        params = self.Params().FromTextWithTypes(self.params.ToTextWithTypes())
        return {'params': params.Set(dtype_policy=self._policy_of_layers).ToTextWithTypes()}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        return cls.Params().FromTextWithTypes(config['params']).Instantiate()


@contextlib.contextmanager
def default_policy(policy: str | keras.dtype_policies.DTypePolicy | None) -> Iterator[None]:
    """Set the default dtype policy of layers that are created inside the `with` block.

    Args:
        policy: Keras dtype policy, or its name; None or a `DTypePolicyMap` changes nothing.

    Raises:
        ValueError: there is no such policy.
    """
    if policy is None or isinstance(policy, keras.dtype_policies.DTypePolicyMap):
        yield
        return
    before = keras.config.dtype_policy()
    try:
        keras.config.set_dtype_policy(keras.dtype_policies.get(policy))
    except (TypeError, ValueError) as error:
        nearest = wording.did_you_mean(str(policy), DTYPE_POLICIES)
        raise ValueError(f'dtype_policy={policy!r} is unknown{nearest}') from error
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def with_policy(layer_params: hyperparams.InstantiableParams, policy: str | None) -> hyperparams.InstantiableParams:
    """Return a copy of a layer's Params. If they have no dtype policy, the copy has `policy`.

    Args:
        policy: name of a dtype policy; None: the copy has no changes.

    Raises:
        ValueError: the constructor of the layer cannot take `policy`.
    """
    copy = layer_params.Copy()
    if policy is None:
        return copy
    field = next((field for field in ('dtype_policy', 'dtype') if field in copy), None)
    if field is None and policy == 'float32':
        return copy
    if field is None:
        raise ValueError(
            f'dtype_policy={policy!r} cannot be passed to {layer_params.cls.__name__}, which takes no argument '
            'dtype. Give its constructor **kwargs, and pass them on in super().__init__(**kwargs).')
    return copy if copy.Get(field) is not None else copy.Set(**{field: policy})


def require_size(params: hyperparams.Params, *fields: str) -> None:
    """Raise ValueError if a field is not an integer of at least 1."""
    for field in fields:
        value = params.Get(field)
        if not isinstance(value, int) or value < 1:
            raise ValueError(
                f'{params.cls.__name__}.{field} is {value!r}; it must be an integer of at least 1. Set it.')


def as_logits(x: tf.Tensor) -> tf.Tensor:
    """Cast logits to at least float32, which a cross-entropy needs."""
    return keras.ops.cast(x, keras.backend.result_type(x.dtype, 'float32'))


def trained_variables(layers: Iterable[keras.layers.Layer]) -> list[keras.Variable]:
    """List each variable that has `trainable=True`."""
    # Keras's `trainable_variables` lists nothing for a frozen layer, even if it contains trained weights, as with LoRA.
    found = (variable for layer in layers for variable in layer.variables if variable.trainable)
    return list({id(variable): variable for variable in found}.values())


def frozen_weights(layers: Iterable[keras.layers.Layer]) -> list[keras.Variable]:
    """List the frozen weights, without variables such as moving statistics."""
    parts = (part for layer in layers for part in layer._flatten_layers())
    return [variable for part in parts for variable in part._trainable_variables if not variable.trainable]


def tie_layers(stack: Sequence[keras.layers.Layer]) -> None:
    """Connect layers that use another layer's weights to the owner of these weights. Call this before any `build`.

    Raises:
        ValueError: the owner is not in `stack`.
    """
    by_name = {layer.name: layer for layer in stack}
    for layer in stack:
        if isinstance(layer, BaseLayer) and hasattr(layer, 'tie'):
            layer.tie(by_name)


@contextlib.contextmanager
def training_step(step: int | tf.Tensor | None) -> Iterator[None]:
    """Make `current_training_step()` return `step` inside the `with` block. None means unknown."""
    outer = current_training_step()
    _local.step = step  # the pipeline does this around every stage, so a layer needs no counter
    try:
        yield
    finally:
        _local.step = outer


def current_training_step() -> int | tf.Tensor | None:
    """Return the current training step, or None if it is unknown."""
    return getattr(_local, 'step', None)


@contextlib.contextmanager
def unallocated_variables() -> Iterator[None]:
    """Act as `deferred_variables`, and restore Python's random state after the block."""
    random_state = random.getstate()  # later initial weights depend on it
    try:
        with deferred_variables():
            yield
    finally:
        random.setstate(random_state)


@contextlib.contextmanager
def deferred_variables() -> Iterator[None]:
    """Let the `with` block create Keras variables without allocating memory.

    A value that the block assigns to such a variable becomes the initial value. Assignments to other variables take
    effect at the end of the block.
    """
    queued, scope = list(global_state.get_global_attribute(_QUEUE) or []), _DeferringScope(initialize_variables=False)
    try:
        with scope:
            yield
    finally:
        # Otherwise Keras would allocate the block's variables when the next ordinary scope closes.
        global_state.set_global_attribute(_QUEUE, queued)
    for variable, value in scope.updates.values():
        if variable._value is not None:
            variable.assign(value)
        elif not tf.is_symbolic_tensor(value):
            variable._initializer = lambda shape, dtype, value=value: value


class _DeferringScope(keras.StatelessScope):
    """A stateless scope that records the last assignment to each variable."""

    @functools.cached_property
    def updates(self) -> dict[int, tuple]:
        return {}  # {id of the variable: (variable, last value)}

    def add_update(self, update: tuple) -> None:
        super().add_update(update)
        self.updates[id(update[0])] = update

    def get_current_value(self, variable: keras.Variable) -> Any:
        value = super().get_current_value(variable)
        if value is None and variable._value is None:  # what a `build` reads once must stay: initializers may draw anew
            value = variable._convert_to_tensor(variable._initializer(variable.shape, dtype=variable.dtype))
            self.add_update((variable, value))
        return value


def allocate(variables: Iterable[keras.Variable]) -> None:
    """Set each variable without a value to its initial value, on the current device.

    Inside `deferred_variables`, this function does nothing.
    """
    outer = global_state.get_global_attribute(_SCOPE)
    if outer is not None and not outer.initialize_variables:
        return
    with outside_of_scopes():  # the states of seed generators first: initializers may draw from them
        for variable in sorted(variables, key=lambda each: each.name != 'seed_generator_state'):
            if variable._value is None:  # Keras would do it only at the end of a symbolic run, outside device scopes
                variable._deferred_initialize()


@contextlib.contextmanager
def outside_of_scopes() -> Iterator[None]:
    """Let the `with` block create variables outside of stateless scopes and traced functions."""
    outer = global_state.get_global_attribute(_SCOPE)
    global_state.set_global_attribute(_SCOPE, None)
    try:
        with patches.creating_outside_functions():
            yield
    finally:
        global_state.set_global_attribute(_SCOPE, outer)
