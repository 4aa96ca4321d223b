"""Slots, checks and updates of Keras optimizers."""

from typing import Any

import keras

from lingpipe.devices import device_kinds, variable_placement
from lingpipe.private_api import base_optimizer, tensorflow_optimizer

_REPLACED = ('_backend_apply_gradients', '_backend_update_step', '_clip_gradients')
_OF_ALL = ('apply', 'apply_gradients', *_REPLACED)
_OF_EACH = ('_apply_weight_decay', '_get_current_learning_rate', 'learning_rate')


def is_own(optimizer: keras.optimizers.Optimizer, method: str) -> bool:
    """Return whether an optimizer's class overrides a method of Keras's base class."""
    stock = getattr(tensorflow_optimizer.TFOptimizer, method), getattr(base_optimizer.BaseOptimizer, method)
    return getattr(type(optimizer), method) not in stock


def works_on_all_weights(optimizer: keras.optimizers.Optimizer) -> bool:
    """Return whether an optimizer may need all weights at once."""
    theirs = [each for each in type(optimizer).__mro__ if each.__module__.split('.')[0] not in ('keras', 'lingpipe')]
    return bool(
        optimizer.use_ema or optimizer.gradient_accumulation_steps
        or any(is_own(optimizer, method) for method in _REPLACED)
        or any(method in vars(each) for each in theirs for method in _OF_EACH))


def refuse_own_scaling(optimizer: keras.optimizers.Optimizer) -> None:
    """Raise ValueError if an optimizer scales the loss, but is not Keras's `LossScaleOptimizer`."""
    is_scaler = type(optimizer) is keras.optimizers.LossScaleOptimizer
    if not is_scaler and (is_own(optimizer, 'scale_loss') or optimizer.loss_scale_factor):
        raise ValueError(
            f'The optimizer {optimizer.name!r} overrides scale_loss or has loss_scale_factor='
            f'{optimizer.loss_scale_factor}, but a pipeline scales the loss by itself, inside its last partition. '
            'Leave it out, and wrap the optimizer in keras.optimizers.LossScaleOptimizer where layers compute in '
            'float16.')


def refuse_work_on_all_weights(optimizer: keras.optimizers.Optimizer, place: str) -> None:
    """Raise ValueError if an optimizer overrides a method that takes all weights at once.

    The message names `place`.
    """
    own = [method for method in _OF_ALL if is_own(optimizer, method)]
    if own:
        raise ValueError(
            f'The optimizer {type(optimizer).__name__} defines {own[0]}, which works on all weights at once, but '
            f'{place} updates them one by one. Choose another, such as SGD, Adam or AdamW.')


def parts_of(optimizer: keras.optimizers.Optimizer) -> list[keras.optimizers.Optimizer]:
    """Return the optimizers inside a Keras wrapper, or the optimizer itself."""
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        return parts_of(optimizer.inner_optimizer)
    return list(optimizer.optimizers) if isinstance(optimizer, keras.optimizers.MultiOptimizer) else [optimizer]


def move_slots(optimizer: keras.optimizers.Optimizer) -> None:
    """Move the slots of each weight to the device of the weight."""
    # Keras creates some slots elsewhere, such as Adafactor's factors. Keras does not move slots with weights.
    for part in parts_of(optimizer):
        for slot, weight in _slots(part):
            device = variable_placement.device_of(weight)
            if not device_kinds.is_logical_core(device):
                variable_placement.move(slot, device)


def _slots(optimizer: keras.optimizers.Optimizer) -> list[tuple[keras.Variable, keras.Variable]]:
    """Return each slot with its weight."""
    weights = optimizer._trainable_variables
    own = (weights, optimizer._variables)
    # The slots are in attributes of the optimizer that list one variable per weight.
    lists = [kept for kept in vars(optimizer).values() if isinstance(kept, (list, tuple)) and len(kept) == len(weights)
             and not any(kept is one for one in own)]
    return [(slot, weight) for kept in lists for slot, weight in zip(kept, weights)
            if isinstance(slot, keras.Variable) and slot is not weight]


def refuse_all_but_slots(optimizer: keras.optimizers.Optimizer, slots: list, place: str) -> None:
    """Raise ValueError if an optimizer has other variables than slots, step number and learning rate.

    The message names `place`.
    """
    known = {id(variable) for variable in [*slots, optimizer._iterations, optimizer._learning_rate]}
    others = [variable.name for variable in optimizer.variables if id(variable) not in known]
    if others:
        raise ValueError(
            f'The optimizer {type(optimizer).__name__} keeps {others[:3]} beside slots of the shapes of the weights, '
            f'which {place} cannot hold. Choose another, such as SGD, Adam or AdamW.')


class PureOptimizer:
    """A Keras optimizer that computes updates as tensors, and changes no variable.

    Args:
        optimizer: an optimizer that has no slots yet. It is changed in place, and cannot be used for anything else.
        variables: all variables to train. They need no values. Inside `unallocated_variables`, slots get no values.

    Raises:
        ValueError: the optimizer has variables other than slots, or overrides a method that works on all weights.
    """

    def __init__(self, optimizer: keras.optimizers.Optimizer, variables: list[keras.Variable]) -> None:
        self._optimizer = optimizer
        schedule = optimizer._learning_rate
        self._learning_rate = schedule if callable(schedule) else float(optimizer.learning_rate)
        self._slots = {id(variable): [] for variable in variables}
        self._indices = {id(variable): index for index, variable in enumerate(variables)}
        add_variable = base_optimizer.BaseOptimizer.add_variable_from_reference

        def add_slot(reference_variable: keras.Variable, *args: Any, **kwargs: Any) -> keras.Variable:
            slot = add_variable(optimizer, reference_variable, *args, **kwargs)
            self._slots[id(reference_variable)].append(slot)
            return slot

        optimizer._var_key = id
        optimizer.add_variable_from_reference = add_slot
        optimizer._get_variable_index = lambda variable: self._indices[id(variable)]
        for method in ('assign', 'assign_add', 'assign_sub',
                       '_apply_weight_decay'):  # Keras's TensorFlow versions accept only variables
            if not is_own(optimizer, method):
                setattr(optimizer, method, getattr(base_optimizer.BaseOptimizer, method).__get__(optimizer))
        optimizer.build(variables)
        refuse_all_but_slots(
            optimizer, [slot for slots in self._slots.values() for slot in slots], 'one program for all cores')
        refuse_work_on_all_weights(optimizer, 'one program for all cores')

    def slots(self, variable: keras.Variable) -> list[keras.Variable]:
        """Return the slots of a weight."""
        return self._slots[id(variable)]

    def learning_rate(self, step: Any) -> Any:
        """Return the learning rate, a float32 scalar.

        Args:
            step: int64 scalar, the number of earlier updates.
        """
        rate = self._learning_rate
        return keras.ops.cast(rate(step) if callable(rate) else rate, 'float32')

    def update(self, variable: keras.Variable, value: Any, gradient: Any, slots: list, step: Any,
               learning_rate: Any) -> tuple:
        """Return the new value of a weight, and a list with the new values of its slots.

        Args:
            variable: the weight. Its own value is not used.
            slots: list of tensors, the values of `slots(variable)`.
            step: int64 scalar, the number of earlier updates.
        """
        optimizer, learning_rate = self._optimizer, keras.ops.cast(learning_rate, value.dtype)
        mapping = [(variable, value), *zip(self.slots(variable), slots)]
        with self._scope(step, learning_rate, mapping) as scope:
            optimizer._apply_weight_decay([variable])
            optimizer.update_step(gradient, variable, learning_rate)
        return scope.get_current_value(variable), [scope.get_current_value(slot) for slot in self.slots(variable)]

    def _scope(self, step: Any, learning_rate: Any, mapping: list) -> Any:
        iterations, rate = self._optimizer.iterations, self._optimizer._learning_rate
        numbers = [(iterations, keras.ops.cast(step, iterations.dtype))]
        if isinstance(rate, keras.Variable):
            numbers.append((rate, keras.ops.cast(learning_rate, rate.dtype)))
        return keras.StatelessScope([*numbers, *mapping], initialize_variables=False)
