"""The optimizer of the training params, dynamic loss scaling, and moving averages of weights."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from lingpipe import hyperparams
from lingpipe.devices import variable_placement
from lingpipe.hyperparams_text import param_tree
from lingpipe.layers import keras_params
from lingpipe.optimizers import device_placement

_INSTEAD = {
    'clipnorm': 'train.clip_gradient_norm_to_value', 'clipvalue': 'train.clip_gradient_norm_to_value',
    'global_clipnorm': 'train.clip_gradient_norm_to_value', 'use_ema': 'train.ema_decay',
    'gradient_accumulation_steps': 'body.num_micro_batches'}
_SLOTS_OF_ADAM = 2


def num_slots(train_params: hyperparams.Params) -> int:
    """Count the slots and moving averages that training keeps per weight."""
    return count_slots(make_optimizer(train_params)) + bool(train_params.ema_decay)


def count_slots(optimizer: keras.optimizers.Optimizer) -> int:
    """Count the slots that an optimizer keeps per weight. Return 2 if the optimizer cannot be copied."""
    weight = keras.Variable(np.zeros([2, 3]))
    try:
        copy = type(optimizer).from_config(optimizer.get_config())
    except (TypeError, ValueError, NotImplementedError):  # such as a user's class without a config, or with a lambda
        return _SLOTS_OF_ADAM
    copy.build([weight])
    return sum(variable.shape == weight.shape for variable in copy.variables)


def build_optimizer(train_params: hyperparams.Params, variables: list[keras.Variable],
                    scales_loss: bool = False) -> keras.optimizers.Optimizer:
    """Create the optimizer that the training params describe, with each slot on the device of its variable."""
    optimizer = make_optimizer(train_params)
    if scales_loss:
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
    device_placement.place(optimizer)
    with tf.device('CPU:0'):
        optimizer.build(variables)
    return optimizer


def make_optimizer(train_params: hyperparams.Params) -> keras.optimizers.Optimizer:
    """Create the optimizer that the training params describe, without slots.

    Raises:
        ValueError: the params are invalid, or several learning rates are set.
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
    """Raise ValueError if several learning rates are set."""
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


def is_finite(loss: tf.Tensor, norm: tf.Tensor) -> tf.Tensor:
    """Return whether loss and gradient norm are finite, as a boolean scalar."""
    return tf.math.is_finite(loss) & tf.math.is_finite(norm)


def is_scaling(optimizer: keras.optimizers.Optimizer) -> bool:
    """Return whether an optimizer scales the loss by a factor that changes during training."""
    return isinstance(optimizer, keras.optimizers.LossScaleOptimizer)


def scale_of(optimizer: keras.optimizers.Optimizer) -> tf.Tensor | None:
    """Return the loss scale as a float32 scalar, or None if there is no loss scale."""
    return optimizer.dynamic_scale.value.read_value() if is_scaling(optimizer) and optimizer.built else None


def unscaled(optimizer: keras.optimizers.Optimizer) -> keras.optimizers.Optimizer:
    """Return the inner optimizer of a `LossScaleOptimizer`. Return any other optimizer itself."""
    return optimizer.inner_optimizer if is_scaling(optimizer) else optimizer


def update_if_finite(optimizer: keras.optimizers.LossScaleOptimizer, is_finite: tf.Tensor, update: Callable,
                     undo: Callable = lambda: None) -> None:
    """Run `update` if all gradients are finite, and change the loss scale as Keras does.

    The method is in Mixed Precision Training, arXiv 1710.03740, section 3.2.

    Args:
        update: function without arguments that updates everything except the scale.
        undo: function without arguments that reverts earlier assignments of the step if a gradient is not finite.
    """
    # Keras's own `apply` would unscale all gradients on the first device.
    tf.cond(is_finite, lambda: _done(update), lambda: _done(undo))
    count, scale = optimizer.step_counter, optimizer.dynamic_scale
    is_due = tf.equal(count.value, optimizer.dynamic_growth_steps - 1)
    growth = tf.where(is_finite, tf.where(is_due, 2.0, 1.0), 0.5)
    count.assign(tf.where(is_finite & ~is_due, count.value + 1, 0))
    scale.assign(scale.value * growth)


def _done(function: Callable) -> tf.Tensor:
    function()
    return tf.constant(True)


class MovingAverage:
    """Moving averages of variables, each on the device of its variable.

    Each step computes `average = decay * average + (1 - decay) * value`. The decay of step t is at most
    (1 + t) / (10 + t), as in `tf.train.ExponentialMovingAverage` with `num_updates`. Integer variables are copied.
    """

    def __init__(self, named_variables: dict[str, Any], decay: float) -> None:
        self._decay = decay
        self._variables = list(named_variables.values())
        self.averages = {}
        for name, variable in named_variables.items():
            with variable_placement.creating_on(variable_placement.device_of(variable)):
                self.averages[name] = tf.Variable(variable.value.read_value(), trainable=False)
        self._average_of = {id(variable): average for variable, average in zip(self._variables, self.averages.values())}
        self._update = device_placement.DeviceFunctions(self._move)

    def update(self, step: Any) -> None:
        """Update all averages once. `step` is the number of the step, counted from 0."""
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
    """Return a function `(average, value, step)` that computes the next average. Return None without a decay."""
    return (lambda average, value, step: _moved(average, value, _decay_of(decay, step))) if decay else None


def _decay_of(decay: Any, step: Any) -> tf.Tensor:
    step = tf.cast(step, tf.float32)
    return tf.minimum(decay, (1.0 + step) / (10.0 + step))


def _moved(average: tf.Tensor, value: Any, decay: Any) -> tf.Tensor:
    if not (value.dtype.is_floating or value.dtype.is_complex):
        return value
    precise = value.dtype
    if precise.is_floating:  # at least float32
        precise = tf.as_dtype(keras.backend.result_type(precise.name, 'float32'))
    step = tf.cast(average, precise) - tf.cast(value, precise)
    return tf.cast(tf.cast(average, precise) - tf.cast(1.0 - decay, precise) * step, average.dtype)
