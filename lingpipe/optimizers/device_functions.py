"""Work on many variables as one function per device."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from lingpipe.devices import device_kinds, variable_placement
from lingpipe.stages import losses


class DeviceFunctions:
    """Runs a function on the variables of each device, on that device, as one call that is never inlined.

    So devices compile their parts in parallel, and the graph of the step stays small: one call per device instead of a
    dozen operations per variable.

    Args:
        function: function `(variables, *per_variable, *shared)` that returns a list of one tensor per variable, or
            None.
    """

    def __init__(self, function: Callable) -> None:
        self._function, self._functions = function, {}

    def __call__(self, variables: Any, per_variable: tuple = (), shared: tuple = ()) -> list:
        """Call the function once per device.

        Args:
            variables: list of Keras variables, or of `tf.Variable`.
            per_variable: lists, each with one tensor per variable; a variable with a None is left out.
            shared: tensors that every device gets.

        Returns:
            List of the function's results for each variable; None if it returned None, or the variable was left out.
        """
        groups, results = {}, [None] * len(variables)
        for position, row in enumerate(zip(variables, *per_variable)):
            if all(part is not None for part in row):
                groups.setdefault(variable_placement.device_of(row[0]), []).append((position, *row))
        for device, rows in groups.items():
            positions, group, *of_group = map(list, zip(*rows))
            with tf.device(device):
                values = self._of(device, group)(*of_group, *shared)
            for position, value in zip(positions, values or []):
                results[position] = value
        return results

    def _of(self, device: str, variables: list) -> Callable:
        """Return the function of a device; a moved variable needs a new trace: an old one would update the old copy."""
        traced = list(map(variable_placement.native, variables))
        key = tuple(map(id, traced))
        if key not in self._functions:
            call = device_kinds.one_call(device, lambda *arguments: self._function(variables, *arguments))
            self._functions[key] = call, traced  # keeps the objects, so that their ids are not reused
        return self._functions[key][0]


def clipping_factor(norm: tf.Tensor, limit: float) -> tf.Tensor:
    """Return the factor that limits the global norm of gradients to `limit`, a positive number."""
    return limit / tf.maximum(norm, limit)


def half_squares(unused_variables: Any, gradients: Any) -> list:
    """Return half the squared norms; a row that an embedding looked up twice counts twice, as in Keras."""
    given = [gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient for gradient in gradients]
    return [tf.nn.l2_loss(losses.in_full_precision(values)) for values in given]


def scaled(unused_variables: Any, tensors: Any, factor: tf.Tensor) -> list:
    """Multiply tensors or `tf.IndexedSlices` by a scalar, as a function for `DeviceFunctions`."""
    return [times(tensor, factor) for tensor in tensors]


def times(tensor: Any, factor: tf.Tensor) -> Any:
    """Multiply a tensor or `tf.IndexedSlices` by a scalar of any dtype; the result has the dtype of the tensor."""
    factor = tf.cast(factor, tensor.dtype)
    if isinstance(tensor, tf.IndexedSlices):
        return tf.IndexedSlices(tensor.values * factor, tensor.indices, tensor.dense_shape)
    return tensor * factor
