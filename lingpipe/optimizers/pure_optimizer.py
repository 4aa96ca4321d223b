"""A Keras optimizer as a function of tensors, for programs that hold weights of several layers in one tensor."""

from typing import Any

import keras

from lingpipe.optimizers import optimizer_parts
from lingpipe.private_api import base_optimizer


class PureOptimizer:
    """The update of a weight by a Keras optimizer, without using any variable.

    Args:
        optimizer: an optimizer without slots; it is changed in place, and cannot be used for anything else.
        variables: all variables to train; if they are not allocated, the slots are not allocated either.

    Raises:
        ValueError: the optimizer keeps variables that are not slots of weights, or works on all weights at once.
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
            if not optimizer_parts.is_own(optimizer, method):
                setattr(optimizer, method, getattr(base_optimizer.BaseOptimizer, method).__get__(optimizer))
        optimizer.build(variables)
        optimizer_parts.refuse_all_but_slots(
            optimizer, [slot for slots in self._slots.values() for slot in slots], 'one program for all cores')
        optimizer_parts.refuse_work_on_all_weights(optimizer, 'one program for all cores')

    def slots(self, variable: keras.Variable) -> list[keras.Variable]:
        """Return the list of Keras variables that the optimizer keeps for a weight."""
        return self._slots[id(variable)]

    def learning_rate(self, step: Any) -> Any:
        """Return the learning rate, a float32 scalar; `step`, an int64 scalar, is the number of updates so far."""
        rate = self._learning_rate
        return keras.ops.cast(rate(step) if callable(rate) else rate, 'float32')

    def update(self, variable: keras.Variable, value: Any, gradient: Any, slots: list, step: Any,
               learning_rate: Any) -> tuple:
        """Compute the update of one weight: its new value, and the list of the new values of its slots.

        Args:
            variable: identifies the weight; its own value is not used.
            value: tensor, the weight.
            gradient: tensor of the same shape.
            slots: list of tensors, the values of `slots(variable)`.
            step: int64 scalar, the number of updates so far.
            learning_rate: what `learning_rate(step)` returned.
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
