"""Creating, moving, reading and assigning variables on their devices."""

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from lingpipe import patches
from lingpipe.devices import collectives, device_kinds


def device_of(variable: keras.Variable | tf.Variable) -> str:
    """Return the device of a Keras variable or `tf.Variable`, as a name for `tf.device`."""
    variable = native(variable)
    return getattr(variable, 'logical_core', None) or variable.device


def native(variable: keras.Variable | tf.Variable) -> tf.Variable:
    """Return the `tf.Variable` of a Keras variable. A `tf.Variable` is returned as it is."""
    return variable if isinstance(variable, tf.Variable) else variable.value


def is_allocated(variable: keras.Variable) -> bool:
    """Return whether a Keras variable has a value."""
    return variable._value is not None  # pylint: disable=protected-access


def move(variable: keras.Variable, device: str) -> None:
    """Move a Keras variable to another device, in place.

    Every `tf.function` that was traced earlier is traced again. A `ConcreteFunction` that reads the old copy fails.
    """
    old = variable.value
    if is_same_device(device, device_of(old)):
        return
    with tf.init_scope(), tf.name_scope(''), creating_on(device):
        # Name and id stay the same, because optimizers identify variables by these.
        new = tf.Variable(old.read_value(), trainable=old.trainable, name=old.name.removesuffix(':0'),
                          aggregation=old.aggregation, synchronization=old.synchronization)
        new._unique_id = old._unique_id  # pylint: disable=protected-access
        variable._initialize(new)  # pylint: disable=protected-access
        tf.raw_ops.AssignVariableOp(resource=old.handle, value=tf.zeros([0], old.dtype))  # the old copy takes no memory
    patches.forget_traces()


def owner(variable: keras.Variable | tf.Variable, devices: Iterable[str]) -> str:
    """Return the name of the device that stores a variable, as written in `devices` if the device is among them."""
    own = device_of(variable)
    return next((device for device in devices if is_same_device(device, own)), own)


@functools.cache
def is_same_device(name: str, full_name: str) -> bool:
    """Return whether `name`, such as 'GPU:1', means the device `full_name`."""
    full = tf.DeviceSpec.from_string(full_name)
    return full.make_merged_spec(tf.DeviceSpec.from_string(name)) == full


@contextlib.contextmanager
def creating_on_one_of(devices: Sequence[str]) -> Iterator[None]:
    """Create each weight in the `with` block on the device with the fewest bytes of weights so far.

    Variables that are not trained, such as moving averages, go to the first device.
    """
    num_bytes = dict.fromkeys(devices, 0)

    def create(next_creator: Any, **arguments: Any) -> tf.Variable:
        device = min(devices, key=num_bytes.__getitem__) if arguments.get('trainable') else devices[0]
        with creating_on(device):
            variable = next_creator(**arguments)
        num_bytes[device] += variable.dtype.size * variable.shape.num_elements() if arguments.get('trainable') else 0
        return variable

    with tf.variable_creator_scope(create) if len(num_bytes) > 1 else creating_on(devices[0]):
        yield


@contextlib.contextmanager
def creating_on(device: str) -> Iterator[None]:
    """Create the variables in the `with` block on a device."""
    with contextlib.ExitStack() as scopes:
        scopes.enter_context(tf.device(device))
        if device_kinds.is_logical_core(device):
            scopes.enter_context(collectives.current().creating_on(device))
            scopes.enter_context(tf.variable_creator_scope(_initial_value_on('CPU:0')))
        elif device_kinds.must_compile(device):
            host = device_kinds.for_single_operations(device)
            scopes.enter_context(tf.variable_creator_scope(_initial_value_on(host)))
        yield


def _initial_value_on(host: str) -> Callable:
    def create(next_creator: Any, **arguments: Any) -> tf.Variable:
        initial_value = arguments['initial_value']
        with tf.device(host):
            value = initial_value() if callable(initial_value) else initial_value
            arguments['initial_value'] = tf.convert_to_tensor(value)
        return next_creator(**arguments)

    return create


def read_variable(variable: keras.Variable) -> tf.Tensor:
    """Read a Keras variable on its device."""
    return variable.value.value()


def read_unwatched(variable: keras.Variable) -> tf.Tensor:
    """Read a Keras variable without making gradient tapes watch it."""
    return tf.raw_ops.ReadVariableOp(resource=variable.value.handle, dtype=variable.dtype)


def read_values(stages: Sequence[Any], read: Callable[[keras.Variable], tf.Tensor] = read_variable) -> list[Any]:
    """Read the variables of all stages by `read`, each on its device."""
    known = {}  # a shared variable is read only once

    def value_of(stage: Any, variable: Any) -> tf.Tensor:
        if id(variable) not in known:
            with tf.device(owner(variable, [stage.device])):
                known[id(variable)] = read(variable)
        return known[id(variable)]

    return [stage.variables().map(functools.partial(value_of, stage)) for stage in stages]


def bring(stages: Sequence[Any], values: Sequence[Any]) -> list[Any]:
    """Copy values to the devices of the stages.

    Args:
        values: result of `read_values` for these stages, or for the stages of another replica.
    """
    def on(stage: Any, variable: Any, value: Any) -> tf.Tensor:
        is_here = is_same_device(stage.device, device_of(variable))
        return value if is_here else tf.identity(value)

    brought = []
    for stage, parts in zip(stages, values):
        with tf.device(stage.device):
            brought.append(type(parts)(*[[on(stage, *pair) for pair in zip(*row)]
                                         for row in zip(stage.variables(), parts)]))
    return brought


def assign(updates: Iterable[tuple[keras.Variable | tf.Variable, tf.Tensor]]) -> list[Any]:
    """Assign new values to variables on their devices. Return an empty list."""
    for variable, value in updates:
        with tf.device(device_of(variable)):
            variable.assign(value)
    return []  # no updates are left for the caller
