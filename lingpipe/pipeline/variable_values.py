"""Reading and assigning Keras variables, each on the device where it lives."""

import functools

import tensorflow as tf

from lingpipe.distribute import variable_placement


def read_variable(variable):
    """Reads a Keras variable where it lives, when the current device scope names its device."""
    return variable.value.read_value()


def read_values(stages, training, read=read_variable):
    """Reads each stage's variables on its device.

    Args:
        stages: list of `Stage`s.
        training: Python boolean.
        read: function that gives the value to use for a Keras variable.

    Returns:
        List of `Variables` of tensors.
    """
    values = []
    for stage in stages:
        with tf.device(stage.device):
            values.append(stage.variables(training).map(functools.partial(_read_onto, stage.device, read)))
    return values


def _read_onto(device, read, variable):
    """Reads a variable, and brings it to the stage's device once, where it lives with another stage."""
    value = read(variable)
    return value if _same_device(device, variable_placement.device_of(variable)) else tf.identity(value)


def _same_device(name, full_name):
    full = tf.DeviceSpec.from_string(full_name)
    return full.make_merged_spec(tf.DeviceSpec.from_string(name)) == full


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
