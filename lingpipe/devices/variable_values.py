"""Reading and assigning Keras variables, each on the device where it lives."""

import functools

import tensorflow as tf

from lingpipe.devices import variable_placement


def read_variable(variable):
    """Reads a Keras variable where it lives, when the current device scope names its device."""
    return variable.value.read_value()


def read_unwatched(variable):
    """Reads a Keras variable where no gradient tape sees it: whoever reads it so takes care of its gradient."""
    return tf.raw_ops.ReadVariableOp(resource=variable.value.handle, dtype=variable.dtype)


def read_values(stages, read=read_variable):
    """Reads each stage's variables, each where it lives, and once where several stages use it.

    Args:
        stages: list of `Stage`s.
        read: function that gives the value to use for a Keras variable.

    Returns:
        List of `Variables` of tensors.
    """
    known = {}

    def value_of(stage, variable):
        if id(variable) not in known:
            with tf.device(variable_placement.owner(variable, [stage.device])):
                known[id(variable)] = read(variable)
        return known[id(variable)]

    return [stage.variables().map(functools.partial(value_of, stage)) for stage in stages]


def bring(stages, values):
    """Brings values to the devices of the stages, once where one lives elsewhere.

    Args:
        stages: list of `Stage`s.
        values: what `read_values` returned for them, or for other replicas of them.

    Returns:
        List of `Variables` of tensors.
    """
    def on(stage, variable, value):
        is_here = variable_placement.is_same_device(stage.device, variable_placement.device_of(variable))
        return value if is_here else tf.identity(value)

    brought = []
    for stage, parts in zip(stages, values):
        with tf.device(stage.device):
            brought.append(type(parts)(*[[on(stage, *pair) for pair in zip(*row)]
                                         for row in zip(stage.variables(), parts)]))
    return brought


def assign(updates):
    """Assigns new values to Keras variables on their devices.

    Args:
        updates: list of pairs (variable, value).

    Returns:
        Empty list: nothing is left to assign.
    """
    for variable, value in updates:
        with tf.device(variable_placement.device_of(variable)):
            variable.assign(value)
    return []
