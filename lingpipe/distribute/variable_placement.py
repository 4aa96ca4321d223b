"""Where variables live, and making new ones there."""

import contextlib

import tensorflow as tf

from lingpipe.distribute import device_kinds, logical_cores


def device_of(variable):
    """Returns the device of a Keras variable or `tf.Variable`, as `tf.device` takes it."""
    variable = variable if isinstance(variable, tf.Variable) else variable.value
    return getattr(variable, 'logical_core', None) or variable.device


@contextlib.contextmanager
def creating_on(device):
    """Makes a device that of the variables that are created inside.

    Where each operation would be compiled by itself the host computes the initial values.

    Args:
        device: name of the device.
    """
    with contextlib.ExitStack() as scopes:
        scopes.enter_context(tf.device(device))
        if device_kinds.is_logical_core(device):
            scopes.enter_context(logical_cores.creating_on(device))
            scopes.enter_context(tf.variable_creator_scope(_initial_value_on('CPU:0')))
        elif device_kinds.must_compile(device):
            host = device_kinds.for_single_operations(device)
            scopes.enter_context(tf.variable_creator_scope(_initial_value_on(host)))
        yield


def _initial_value_on(host):
    def create(next_creator, **arguments):
        initial_value = arguments['initial_value']
        with tf.device(host):
            arguments['initial_value'] = tf.convert_to_tensor(initial_value() if callable(initial_value) else initial_value)
        return next_creator(**arguments)

    return create
