"""One Keras optimizer over all partitions, made from the params of training."""

import keras
import tensorflow as tf

from lingpipe.layers import keras_params
from lingpipe.optimizers import device_placement

_INSTEAD = {
    'clipnorm': 'train.clip_gradient_norm_to_value', 'clipvalue': 'train.clip_gradient_norm_to_value',
    'global_clipnorm': 'train.clip_gradient_norm_to_value', 'use_ema': 'train.ema_decay',
    'gradient_accumulation_steps': 'body.num_micro_batches'}


def build_optimizer(train_params, variables, scales_loss=False):
    """Creates the optimizer with its slots beside their variables.

    Args:
        train_params: `task.train` Params.
        variables: list of trainable Keras variables in model order.
        scales_loss: whether layers compute in float16, so that the loss must be scaled.

    Returns:
        A built `keras.optimizers.Optimizer`.

    Raises:
        ValueError: as `make_optimizer`.
    """
    optimizer = make_optimizer(train_params)
    if scales_loss:
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
    device_placement.place(optimizer)
    with tf.device('CPU:0'):
        optimizer.build(variables)
    return optimizer


def make_optimizer(train_params):
    """Creates the optimizer that the params of training describe, without slots.

    Args:
        train_params: `task.train` Params.

    Raises:
        ValueError: when an option of the optimizer has a field of its own in the params of training.
    """
    p = train_params
    params = (p.optimizer or keras_params.KerasParams(keras.optimizers.SGD)).Copy()
    params.learning_rate = p.learning_rate if p.lr_schedule is None else p.lr_schedule.Instantiate()
    _refuse_what_train_params_do(params)
    return params.Instantiate()


def _refuse_what_train_params_do(params):
    for option, instead in _INSTEAD.items():
        if option in params and params.Get(option):
            raise ValueError(
                f'optimizer.{option}={params.Get(option)!r} would do what the trainer does, reports and checkpoints itself. '
                f'Use {instead}.')
