"""Moving averages of weights and of other state of layers."""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from lingpipe.devices import variable_placement
from lingpipe.optimizers import device_functions


class MovingAverage:
    """Computes `average = decay * average + (1 - decay) * value`, each average on the device of its variable.

    The decay of step t is min(decay, (1 + t) / (10 + t)), so that the first steps lose their weight (as with
    `num_updates` of `tf.train.ExponentialMovingAverage`). An average has the dtype of its variable, and is computed at
    least in float32. For integers, such as a counter of steps, the average is the value itself.
    """

    def __init__(self, named_variables: dict[str, Any], decay: float) -> None:
        self._decay = decay
        self._variables = list(named_variables.values())
        self.averages = {}
        for name, variable in named_variables.items():
            with variable_placement.creating_on(variable_placement.device_of(variable)):
                self.averages[name] = tf.Variable(variable.value.read_value(), trainable=False)
        self._average_of = {id(variable): average for variable, average in zip(self._variables, self.averages.values())}
        self._update = device_functions.DeviceFunctions(self._move)

    def update(self, step: Any) -> None:
        """Update all averages once; `step` is the number of the step, counted from 0."""
        self._update(self._variables, shared=(_decay_of(self._decay, step),))

    def _move(self, variables: list, decay: Any) -> None:
        for variable in variables:
            average, value = self._average_of[id(variable)], variable.value.read_value()
            average.assign(_moved(average.read_value(), value, decay))

    def average_of(self, variable: keras.Variable) -> tf.Variable:
        """Return the `tf.Variable` with the average of a Keras variable."""
        return self._average_of[id(variable)]

    def read(self, variable: keras.Variable) -> tf.Tensor:
        """Return the average of a Keras variable, or its value if it has no average."""
        return self._average_of.get(id(variable), variable.value).read_value()


def step_function(decay: float | None) -> Callable[[tf.Tensor, tf.Tensor, Any], tf.Tensor] | None:
    """Return one update of `MovingAverage` as a function of average, value and step; None without a decay."""
    return (lambda average, value, step: _moved(average, value, _decay_of(decay, step))) if decay else None


def _decay_of(decay: Any, step: Any) -> tf.Tensor:
    step = tf.cast(step, tf.float32)
    return tf.minimum(decay, (1.0 + step) / (10.0 + step))


def _moved(average: tf.Tensor, value: Any, decay: Any) -> tf.Tensor:
    if not (value.dtype.is_floating or value.dtype.is_complex):
        return value
    precise = value.dtype
    if precise.is_floating:
        precise = tf.as_dtype(keras.backend.result_type(precise.name, 'float32'))
    step = tf.cast(average, precise) - tf.cast(value, precise)
    return tf.cast(tf.cast(average, precise) - tf.cast(1.0 - decay, precise) * step, average.dtype)
