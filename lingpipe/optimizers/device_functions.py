"""Work on many variables as one function a device."""

import tensorflow as tf


class DeviceFunctions:
    """Runs a function on the variables of each device, there, as one call that is never inlined.

    Devices so compile their part side by side, and the graph of the step stays small: a call a device instead of a dozen
    operations a variable.

    Args:
        function: function `(variables, *lists, *shared)` whose results do not matter.
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
        """
        groups = {}
        for row in zip(variables, *lists):
            groups.setdefault(row[0].value.device, []).append(row)
        for device, rows in groups.items():
            group, *group_lists = map(list, zip(*rows))
            with tf.device(device):
                self._of(group)(*group_lists, *shared)

    def _of(self, variables):
        key = tuple(map(id, variables))
        if key not in self._functions:
            self._functions[key] = tf.function(
                lambda *arguments: self._function(variables, *arguments), autograph=False,
                experimental_attributes={'_noinline': True})
        return self._functions[key]
