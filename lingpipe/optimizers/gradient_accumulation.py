"""Sums of gradients over several steps, beside the variables that they are for."""

import tensorflow as tf

from lingpipe.optimizers import device_functions, method_origins


def place(optimizer):
    """Makes an optimizer with `gradient_accumulation_steps` add up gradients on the device of each variable.

    Keras's own method does it all on the first device. One that the optimizer defines for itself is left alone.

    Args:
        optimizer: `keras.optimizers.Optimizer`; it is changed in place.
    """
    accumulation = _Accumulation(optimizer)
    optimizer._backend_increment_gradient_accumulators = accumulation.increment
    optimizer._backend_reset_gradient_accumulators = accumulation.reset
    if not method_origins.is_own(optimizer, '_backend_apply_gradients'):
        optimizer._backend_apply_gradients = accumulation.apply_gradients


class _Accumulation:
    """The methods that take the place of an optimizer's own."""

    def __init__(self, optimizer):
        self._optimizer = optimizer
        self._means = device_functions.DeviceFunctions(self._mean_group)
        self._increments = device_functions.DeviceFunctions(_increment)
        self._resets = device_functions.DeviceFunctions(_reset)

    def apply_gradients(self, gradients, variables):
        """Counts in steps to choose between adding and updating, and averages in both cases, as Keras does."""
        optimizer, steps = self._optimizer, self._optimizer.gradient_accumulation_steps
        accumulators = list(map(self._accumulator_of, variables))

        def update():
            means = optimizer._clip_gradients(self._means(variables, (gradients,)))
            optimizer._apply_weight_decay(variables)
            optimizer._backend_update_step(means, variables, optimizer.learning_rate)
            optimizer._backend_reset_gradient_accumulators()

        is_due = tf.equal((optimizer._iterations.value + 1) % steps, 0)
        tf.cond(is_due, update, lambda: optimizer._backend_increment_gradient_accumulators(gradients, accumulators))
        if optimizer.use_ema:
            self._average()

    def _average(self):
        optimizer, frequency = self._optimizer, self._optimizer.ema_overwrite_frequency
        variables = optimizer._trainable_variables
        optimizer._update_model_variables_moving_average(variables)
        if frequency:
            tf.cond(tf.equal((optimizer.iterations + 1) % frequency, 0),
                    lambda: optimizer._overwrite_model_variables_with_average_value(variables), lambda: None)

    def increment(self, gradients, accumulators):
        self._increments(accumulators, (gradients,))

    def reset(self):
        self._resets(self._optimizer._accumulated_gradients)

    def _mean_group(self, variables, gradients):
        steps = self._optimizer.gradient_accumulation_steps
        return [(tf.convert_to_tensor(gradient) + self._accumulator_of(variable).value) / steps for variable, gradient in zip(variables, gradients)]

    def _accumulator_of(self, variable):
        return self._optimizer._accumulated_gradients[self._optimizer._get_variable_index(variable)]


def _increment(accumulators, gradients):
    for accumulator, gradient in zip(accumulators, gradients):
        accumulator.value.assign_add(tf.convert_to_tensor(gradient))


def _reset(accumulators):
    for accumulator in accumulators:
        accumulator.value.assign(tf.zeros_like(accumulator.value))
