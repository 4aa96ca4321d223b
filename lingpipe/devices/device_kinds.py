"""What each kind of device asks of the graphs that run on it, and laying out work so."""

import contextlib

import tensorflow as tf

LOGICAL_CORE = 'TPU_REPLICATED_CORE'

_pretended = []


def must_compile(device):
    """Whether all that runs on a device must stand in functions that XLA compiles: a TPU has no kernels for single operations.

    Args:
        device: name of the device.
    """
    return kind_of(device) == 'TPU' or bool(_pretended) and _full_name(device) in map(_full_name, _pretended)


def is_logical_core(device):
    """Whether a device is a core of a `tf.distribute.TPUStrategy`, whose whole step is one program that XLA compiles."""
    return kind_of(device) == LOGICAL_CORE


def has_static_shapes_only(device):
    """Whether what runs on a device is compiled for shapes that are known before."""
    return must_compile(device) or is_logical_core(device)


def for_single_operations(device):
    """Returns where operations go that belong to a device but stand in no function of their own: there, or on its host."""
    return host_of(device) if must_compile(device) else device


def host_of(device):
    """Returns the CPU of the machine that a device belongs to."""
    return tf.DeviceSpec.from_string(device).replace(device_type='CPU', device_index=0).to_string()


def kind_of(device):
    """Returns 'CPU', 'GPU', 'TPU' or another type, None where the name has none or is no name of a device."""
    try:
        return tf.DeviceSpec.from_string(device or '').device_type
    except ValueError:
        return None


@contextlib.contextmanager
def pretend_tpus(devices):
    """Makes `must_compile` take some devices for TPUs inside the `with` block, to try on a CPU what a TPU would be given.

    Args:
        devices: list of device names.
    """
    _pretended.extend(devices)
    try:
        yield
    finally:
        del _pretended[len(_pretended) - len(devices):]


def _full_name(device):
    here = tf.DeviceSpec(job='localhost', replica=0, task=0)
    return here.make_merged_spec(tf.DeviceSpec.from_string(device)).to_string()


def one_call(device, function):
    """Returns what lays a function out as one call on a device, never inlined, so that the graph of a step stays small.

    ::

        CPU, GPU            call of a function
        TPU                 call of a function that XLA compiles
        core of a TPU       the operations themselves: inside a call they would have no core
        program

    Args:
        device: name of the device.
        function: function of nests of tensors.
    """
    if is_logical_core(device):
        return function
    return tf.function(function, autograph=False, jit_compile=must_compile(device) or None,
                       experimental_attributes={'_noinline': True})


def call(device, function, *arguments):
    """Lays out a few operations on a device: one by one, or as one compiled call where the device asks for that.

    Args:
        device: name of the device.
        function: function of nests of tensors.
        *arguments: nests of tensors.

    Returns:
        What the function returns.
    """
    with tf.device(device):
        return operations(device, function)(*arguments)


def operations(device, function):
    """Returns what lays a function of a few operations out, for several calls on one device; see `call`."""
    return one_call(device, function) if must_compile(device) else function


def rest_on_host(device, function):
    """Returns a function that puts what names no device on the host, where a device cannot run single operations.

    Args:
        device: name of a device that the function works on.
        function: function of nests of tensors.
    """
    if not must_compile(device):
        return function

    def on_host(*arguments):
        with tf.device(for_single_operations(device)):
            return function(*arguments)

    return on_host
