"""An exponential moving average of weights and moving statistics, which evaluation uses instead of them."""

import keras
import tensorflow as tf

from lingpipe.devices import variable_placement
from lingpipe.optimizers import device_functions


class MovingAverage:
    """Averages `average = decay * average + (1 - decay) * value`, each on the device of its variable.

    The decay of step t is min(decay, (1 + t) / (10 + t)), so that the first steps do not weigh for ever
    (as `tf.train.ExponentialMovingAverage` does with `num_updates`). An average has the dtype of its variable and is computed in
    float32 at least. What is no number with fractions, such as a counter of steps, has its value in the place of an average.

    Args:
        named_variables: dictionary from name to Keras variable.
        decay: decay late in training.
    """

    def __init__(self, named_variables, decay):
        self._decay = decay
        self._variables = list(named_variables.values())
        self.averages = {}
        for name, variable in named_variables.items():
            with variable_placement.creating_on(variable_placement.device_of(variable)):
                self.averages[name] = tf.Variable(variable.value.read_value(), trainable=False)
        self._average_of = {id(variable): average for variable, average in zip(self._variables, self.averages.values())}
        self._update = device_functions.DeviceFunctions(self._move)

    def update(self, step):
        """Lays out one update; `step` is the number of the step, counted from 0."""
        step = tf.cast(step, tf.float32)
        decay = tf.minimum(self._decay, (1.0 + step) / (10.0 + step))
        self._update(self._variables, shared=(decay,))

    def _move(self, variables, decay):
        for variable in variables:
            average, value = self._average_of[id(variable)], variable.value.read_value()
            average.assign(_moved(average.read_value(), value, decay) if _has_fractions(value.dtype) else value)

    def read(self, variable):
        """Returns the average of a Keras variable, or its value where it is not averaged."""
        return self._average_of.get(id(variable), variable.value).read_value()


def _has_fractions(dtype):
    return dtype.is_floating or dtype.is_complex


def _moved(average, value, decay):
    precise = tf.as_dtype(keras.backend.result_type(value.dtype.name, 'float32')) if value.dtype.is_floating else value.dtype
    step = tf.cast(average, precise) - tf.cast(value, precise)
    return tf.cast(tf.cast(average, precise) - tf.cast(1.0 - decay, precise) * step, average.dtype)
