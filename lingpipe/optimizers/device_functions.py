"""Work on many variables as one function per device."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from lingpipe.devices import device_kinds, variable_placement


class DeviceFunctions:
    """Runs a function on the variables of each device, on that device, as one call that is never inlined.

    So devices compile their parts in parallel, and the graph of the step stays small: one call per device instead of a
    dozen operations per variable.

    Args:
        function: function `(variables, *lists, *shared)` that returns a list of one tensor per variable, or None.
        constants: function without arguments that returns a hashable of everything else that `function` reads. Traces
            are reused while it stays equal.
    """

    def __init__(self, function: Callable | None, constants: Callable = tuple) -> None:
        self._function, self._constants = function, constants
        self._functions = {}

    def __call__(self, variables: Any, lists: tuple = (), shared: tuple = ()) -> list | None:
        """Calls the function once per device.

        Args:
            variables: list of Keras variables, or of `tf.Variable`.
            lists: tuple of lists of tensors, each with one tensor per variable; a variable with a None is left out.
            shared: tuple of tensors that every device gets.

        Returns:
            List of the function's results for each variable; None if it returned None, or the variable was left out.
        """
        groups, results = {}, [None] * len(variables)
        for position, row in enumerate(zip(variables, *lists)):
            if all(part is not None for part in row):
                groups.setdefault(variable_placement.device_of(row[0]), []).append((position, *row))
        for device, rows in groups.items():
            positions, group, *group_lists = map(list, zip(*rows))
            with tf.device(device):
                values = self._of(device, group)(*group_lists, *shared)
            for position, value in zip(positions, values or []):
                results[position] = value
        return results

    def _of(self, device, variables):
        """Returns the function of a device; a moved variable needs a new trace, as an old one changes its old value."""
        traced = list(map(variable_placement.native, variables))
        key = (self._constants(), *map(id, traced))
        if key not in self._functions:
            call = device_kinds.one_call(device, lambda *arguments: self._function(variables, *arguments))
            self._functions[key] = call, traced  # keeps the objects, so that their ids are not reused
        return self._functions[key][0]


def scaled(unused_variables: Any, tensors: Any, factor: tf.Tensor) -> list:
    """Multiplies tensors by a scalar, as a function for `DeviceFunctions`.

    Args:
        unused_variables: list of the variables that the tensors belong to.
        tensors: list of tensors or `tf.IndexedSlices`.
        factor: scalar.

    Returns:
        List of the products, of the types of `tensors`.
    """
    return [_scaled(tensor, tf.cast(factor, tensor.dtype)) for tensor in tensors]


def _scaled(tensor, factor):
    if isinstance(tensor, tf.IndexedSlices):
        return tf.IndexedSlices(tensor.values * factor, tensor.indices, tensor.dense_shape)
    return tensor * factor
