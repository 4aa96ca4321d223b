"""The optimizer that the params of training describe, over all partitions: slots are on the devices of the weights."""

import keras
import numpy as np
import tensorflow as tf

from lingpipe import hyperparams
from lingpipe.hyperparams_text import param_tree
from lingpipe.layers import keras_params
from lingpipe.optimizers import device_placement

_INSTEAD = {
    'clipnorm': 'train.clip_gradient_norm_to_value', 'clipvalue': 'train.clip_gradient_norm_to_value',
    'global_clipnorm': 'train.clip_gradient_norm_to_value', 'use_ema': 'train.ema_decay',
    'gradient_accumulation_steps': 'body.num_micro_batches'}
_SLOTS_OF_ADAM = 2


def num_slots(train_params: hyperparams.Params) -> int:
    """Count the tensors that training keeps for each weight, including its moving average."""
    return count_slots(make_optimizer(train_params)) + bool(train_params.ema_decay)


def count_slots(optimizer: keras.optimizers.Optimizer) -> int:
    """Count the tensors that a copy of an optimizer keeps for each weight; Adam's 2 if it cannot be copied."""
    weight = keras.Variable(np.zeros([2, 3]))
    try:
        copy = type(optimizer).from_config(optimizer.get_config())
    except (TypeError, ValueError, NotImplementedError):  # such as a user's class without a config, or with a lambda
        return _SLOTS_OF_ADAM
    copy.build([weight])
    return sum(variable.shape == weight.shape for variable in copy.variables)


def build_optimizer(train_params: hyperparams.Params, variables: list[keras.Variable],
                    scales_loss: bool = False) -> keras.optimizers.Optimizer:
    """Create the optimizer of `make_optimizer`, with each slot on the device of its variable.

    Args:
        scales_loss: whether layers compute in float16, so that the loss must be scaled.
    """
    optimizer = make_optimizer(train_params)
    if scales_loss:
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
    device_placement.place(optimizer)
    with tf.device('CPU:0'):
        optimizer.build(variables)
    return optimizer


def make_optimizer(train_params: hyperparams.Params) -> keras.optimizers.Optimizer:
    """Create the optimizer that the params of training describe, without slots.

    Raises:
        ValueError: the optimizer sets an option that params of training replace, or there are several learning rates.
    """
    _require_params(train_params)
    p = train_params
    params = (p.optimizer or keras_params.KerasParams(keras.optimizers.SGD)).Copy()
    _refuse_several_rates(p, params)
    if p.lr_schedule is not None:
        params.learning_rate = p.lr_schedule.Instantiate()
    elif p.learning_rate is not None:
        params.learning_rate = p.learning_rate
    _refuse_what_train_params_do(params)
    return params.Instantiate()


def _refuse_several_rates(train_params: hyperparams.Params, optimizer_params: hyperparams.InstantiableParams) -> None:
    """Refuse learning rates of which only one could be used."""
    own = optimizer_params.learning_rate
    is_own = not param_tree.equal(own, keras_params.KerasParams(optimizer_params.cls).learning_rate)
    given = {'train.learning_rate': train_params.learning_rate, 'train.lr_schedule': train_params.lr_schedule,
             'train.optimizer.learning_rate': own if is_own else None}
    named = [name if name == 'train.lr_schedule' else f'{name}={value!r}'
             for name, value in given.items() if value is not None]
    if len(named) > 1:
        raise ValueError(
            f'{" and ".join(named)} were both given, and only one can be the learning rate. Give one of them, and set '
            'the others to None (train.optimizer.learning_rate to its default); fields of a schedule can be changed '
            'too, as in train.lr_schedule.warmup_target=0.1.')


def _require_params(train_params: hyperparams.Params) -> None:
    for field, example in (('optimizer', 'keras.optimizers.Adam'), (
            'lr_schedule', 'keras.optimizers.schedules.CosineDecay, initial_learning_rate=0.1, decay_steps=1000')):
        value = train_params.Get(field)
        if not isinstance(value, (hyperparams.InstantiableParams, type(None))):
            raise ValueError(f'train.{field}={value!r} is not possible: it must be Params or None. Set it in the '
                             f'params file, as in p.train.{field} = layers.KerasParams({example}).')


def _refuse_what_train_params_do(params: hyperparams.InstantiableParams) -> None:
    for option, instead in _INSTEAD.items():
        if option in params and params.Get(option):
            raise ValueError(
                f'optimizer.{option}={params.Get(option)!r} would do what the trainer does, reports and checkpoints '
                f'itself. Use {instead}.')
