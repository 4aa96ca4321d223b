"""An exponential moving average of weights and moving statistics, which evaluation uses instead of them."""

import tensorflow as tf

from lingpipe.distribute import variable_placement
from lingpipe.optimizers import device_functions


class MovingAverage:
    """Averages `average = decay * average + (1 - decay) * value`, each on the device of its variable.

    The decay of step t is min(decay, (1 + t) / (10 + t)), so that the first steps do not weigh for ever
    (as `tf.train.ExponentialMovingAverage` does with `num_updates`).

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
            average = self._average_of[id(variable)]
            average.assign_sub((1.0 - decay) * (average - variable.value))

    def restart(self):
        """Makes every average its variable's present value, as if training began with it."""
        for variable, average in zip(self._variables, self.averages.values()):
            with tf.device(variable_placement.device_of(variable)):
                average.assign(variable.value.read_value())

    def read(self, variable):
        """Returns the average of a Keras variable, or its value where it is not averaged."""
        return self._average_of.get(id(variable), variable.value).read_value()
