"""Work on many variables as one function a device."""

import tensorflow as tf

from lingpipe.distribute import device_calls, variable_placement


class DeviceFunctions:
    """Runs a function on the variables of each device, there, as one call that is never inlined.

    Devices so compile their part side by side, and the graph of the step stays small: a call a device instead of a dozen
    operations a variable.

    Args:
        function: function `(variables, *lists, *shared)` that returns a list of one tensor a variable, or None.
    """

    def __init__(self, function):
        self._function = function
        self._functions = {}

    def __call__(self, variables, lists=(), shared=()):
        """Lays out one call a device.

        Args:
            variables: list of Keras variables.
            lists: tuple of lists of tensors, each with one tensor a variable.
            shared: tuple of tensors that every device gets.

        Returns:
            List of what the function returned for each variable; of Nones where it returned None.
        """
        groups, results = {}, [None] * len(variables)
        for position, row in enumerate(zip(variables, *lists)):
            groups.setdefault(variable_placement.device_of(row[0]), []).append((position, *row))
        for device, rows in groups.items():
            positions, group, *group_lists = map(list, zip(*rows))
            with tf.device(device):
                values = self._of(device, group)(*group_lists, *shared)
            for position, value in zip(positions, values or []):
                results[position] = value
        return results

    def _of(self, device, variables):
        key = tuple(map(id, variables))
        if key not in self._functions:
            self._functions[key] = device_calls.one_call(
                device, lambda *arguments: self._function(variables, *arguments))
        return self._functions[key]


def scaled(unused_variables, tensors, factor):
    """Function for `DeviceFunctions` that multiplies tensors by a scalar."""
    return [tensor * tf.cast(factor, tensor.dtype) for tensor in tensors]
