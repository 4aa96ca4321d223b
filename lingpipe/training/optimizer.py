"""One Keras optimizer over all partitions, doing the arithmetic of each variable on the device of that variable."""

import keras
import tensorflow as tf

from lingpipe.layers import keras_params
from lingpipe.training import device_functions

_INSTEAD = {
    'clipnorm': 'train.clip_gradient_norm_to_value', 'clipvalue': 'train.clip_gradient_norm_to_value',
    'global_clipnorm': 'train.clip_gradient_norm_to_value', 'use_ema': 'train.ema_decay',
    'gradient_accumulation_steps': 'body.num_micro_batches'}


def build_optimizer(train_params, variables):
    """Creates the optimizer with its slots beside their variables.

    Args:
        train_params: `task.train` Params.
        variables: list of trainable Keras variables in model order.

    Returns:
        A built `keras.optimizers.Optimizer`.

    Raises:
        ValueError: when an option of the optimizer needs all gradients on one device.
    """
    p = train_params
    params = (p.optimizer or keras_params.KerasParams(keras.optimizers.SGD)).Copy()
    params.learning_rate = p.learning_rate if p.lr_schedule is None else p.lr_schedule.Instantiate()
    _refuse_what_gathers_gradients(params)
    optimizer = _on_device_of_variable(params.Instantiate())
    with tf.device('CPU:0'):
        optimizer.build(variables)
    return optimizer


def _refuse_what_gathers_gradients(params):
    for option, instead in _INSTEAD.items():
        if option in params and params.Get(option):
            raise ValueError(
                f'optimizer.{option}={params.Get(option)!r} would bring all gradients to one device. '
                f'Use {instead}, which works across partitions.')


def _on_device_of_variable(optimizer):
    """A stock Keras optimizer would do all its arithmetic on the first device."""
    add_variable, apply_weight_decay = optimizer.add_variable_from_reference, optimizer._apply_weight_decay
    update_step = optimizer.update_step

    def update(variables, gradients, learning_rate):
        for gradient, variable in zip(gradients, variables):
            update_step(gradient, variable, learning_rate)

    update_functions = device_functions.DeviceFunctions(update)

    def update_each_on_its_device(gradients, variables, learning_rate):
        update_functions(variables, (gradients,), (tf.convert_to_tensor(learning_rate),))

    def decay_each_on_its_device(variables):
        for variable in variables:
            with tf.device(variable.value.device):
                apply_weight_decay([variable])

    def add_variable_on_device(reference_variable, *args, **kwargs):
        with tf.device(reference_variable.value.device):
            return add_variable(reference_variable, *args, **kwargs)

    optimizer._backend_update_step = update_each_on_its_device
    optimizer._apply_weight_decay = decay_each_on_its_device
    optimizer.add_variable_from_reference = add_variable_on_device
    return optimizer
