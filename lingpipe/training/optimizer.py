"""One Keras optimizer over all partitions, doing the arithmetic of each variable on the device of that variable."""

import keras
import tensorflow as tf

from lingpipe.layers import keras_params


def build_optimizer(train_params, variables):
    """Creates the optimizer with its slots beside their variables.

    Args:
        train_params: `task.train` Params.
        variables: list of trainable Keras variables in model order.

    Returns:
        A built `keras.optimizers.Optimizer`.
    """
    p = train_params
    params = (p.optimizer or keras_params.KerasParams(keras.optimizers.SGD)).Copy()
    params.learning_rate = p.learning_rate if p.lr_schedule is None else p.lr_schedule.Instantiate()
    optimizer = _on_device_of_variable(params.Instantiate())
    with tf.device('CPU:0'):
        optimizer.build(variables)
    return optimizer


def _on_device_of_variable(optimizer):
    """A stock Keras optimizer would do all its arithmetic on the first device."""
    update_step, add_variable = optimizer.update_step, optimizer.add_variable_from_reference

    def update_step_on_device(gradient, variable, learning_rate):
        with tf.device(variable.device):
            return update_step(gradient, variable, learning_rate)

    def add_variable_on_device(reference_variable, *args, **kwargs):
        with tf.device(reference_variable.value.device):
            return add_variable(reference_variable, *args, **kwargs)

    optimizer.update_step = update_step_on_device
    optimizer.add_variable_from_reference = add_variable_on_device
    return optimizer
