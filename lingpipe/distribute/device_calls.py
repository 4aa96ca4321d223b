"""Laying out work on a device in the form that its kind asks for."""

import tensorflow as tf

from lingpipe.distribute import device_kinds


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
    if device_kinds.is_logical_core(device):
        return function
    return tf.function(function, autograph=False, jit_compile=device_kinds.must_compile(device) or None,
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
    return one_call(device, function) if device_kinds.must_compile(device) else function


def rest_on_host(device, function):
    """Returns a function that puts what names no device on the host, where a device cannot run single operations.

    Args:
        device: name of a device that the function works on.
        function: function of nests of tensors.
    """
    if not device_kinds.must_compile(device):
        return function

    def on_host(*arguments):
        with tf.device(device_kinds.for_single_operations(device)):
            return function(*arguments)

    return on_host
