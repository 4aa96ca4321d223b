"""Work on many variables as one function a device."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from lingpipe.devices import device_kinds, variable_placement


class DeviceFunctions:
    """Runs a function on the variables of each device, there, as one call that is never inlined.

    Devices so compile their part side by side, and the graph of the step stays small: a call a device instead of a
    dozen operations a variable.

    Args:
        function: function `(variables, *lists, *shared)` that returns a list of one tensor a variable, or None.
        constants: function without arguments that returns a hashable of what `function` reads besides; as long as it
            stays equal, what was traced is used again.
    """

    def __init__(self, function: Callable | None, constants: Callable = tuple) -> None:
        self._function, self._constants = function, constants
        self._functions = {}

    def __call__(self, variables: Any, lists: tuple = (), shared: tuple = ()) -> list | None:
        """Lays out one call a device.

        Args:
            variables: list of Keras variables, or of `tf.Variable`.
            lists: tuple of lists of tensors, each with one tensor a variable; a variable that has a None is left out.
            shared: tuple of tensors that every device gets.

        Returns:
            List of what the function returned for each variable; None where it returned None, or left the variable out.
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
        """A variable that has moved has another `tf.Variable`, and what was traced would change the old one."""
        traced = list(map(variable_placement.native, variables))
        key = (self._constants(), *map(id, traced))
        if key not in self._functions:
            call = device_kinds.one_call(device, lambda *arguments: self._function(variables, *arguments))
            self._functions[key] = call, traced  # as long as these are kept their ids are theirs
        return self._functions[key][0]


def scaled(unused_variables: Any, tensors: Any, factor: Any) -> Any:
    """Function for `DeviceFunctions` that multiplies tensors by a scalar."""
    return [_scaled(tensor, tf.cast(factor, tensor.dtype)) for tensor in tensors]


def _scaled(tensor, factor):
    if isinstance(tensor, tf.IndexedSlices):
        return tf.IndexedSlices(tensor.values * factor, tensor.indices, tensor.dense_shape)
    return tensor * factor
