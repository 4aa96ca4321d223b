"""A Keras optimizer over several devices: slots and arithmetic on the device of each variable, and equal results."""

import contextlib
import copy
import functools
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import keras
import tensorflow as tf

from lingpipe.devices import device_kinds, variable_placement
from lingpipe.optimizers import device_functions, loss_scaling, optimizer_parts
from lingpipe.private_api import base_optimizer
from lingpipe.stages import losses

_PLAIN_TYPES = (type(None), bool, int, float, str, tuple, set, re.Pattern)


def place(optimizer: keras.optimizers.Optimizer) -> keras.optimizers.Optimizer:
    """Make an optimizer keep its slots, and do its arithmetic, on the device of each variable.

    Otherwise it would do all arithmetic on the first device. Its own methods compute the same as before: the update,
    weight decay, clipping (`global_clipnorm` moves one scalar per variable), accumulation of gradients, the moving
    average of `use_ema` and the constraints of variables. The optimizers inside a `LossScaleOptimizer` or a
    `MultiOptimizer` are placed. Call it again after variables have moved: it moves their slots.

    Returns:
        The same optimizer.

    Raises:
        ValueError: the optimizer scales the loss by itself.
    """
    optimizer_parts.refuse_own_scaling(optimizer)
    if loss_scaling.is_scaling(optimizer):
        place(optimizer.inner_optimizer)
        return optimizer
    has_parts = isinstance(optimizer, keras.optimizers.MultiOptimizer)
    if not hasattr(optimizer, '_device_placement'):
        optimizer._device_placement = None if has_parts else DevicePlacement(optimizer)
        optimizer.build = functools.partial(_build, optimizer, optimizer.build)
    elif not has_parts:
        of(optimizer).forget_traces()
    for part in optimizer.optimizers if has_parts else []:
        place(part)
    optimizer_parts.move_slots(optimizer)
    return optimizer


def _build(optimizer: keras.optimizers.Optimizer, build: Callable, *args: Any, **kwargs: Any) -> None:
    """Build an optimizer, and place what it has created, such as the parts of a `MultiOptimizer`."""
    build(*args, **kwargs)
    place(optimizer)


def of(optimizer: keras.optimizers.Optimizer) -> 'DevicePlacement':
    """Return the `DevicePlacement` of a placed optimizer."""
    return optimizer._device_placement


class DevicePlacement:
    """Applies an optimizer on the devices of its variables, by one function for each device.

    ::

        apply                      the order is Keras's
          accumulate               gradient_accumulation_steps: add to sums, or update with their means
            clip                   by the global norm: one scalar per variable changes its device
            update                 clip each gradient, decay the weight, update_step
          average                  use_ema
          constrain

    The functions run the optimizer's own methods. Learning rate and number of the step are arguments of them, because a
    compiled function cannot read a variable of another device. A user's optimizer that overrides more than `build` and
    `update_step` runs as in Keras, on the first device: other methods may combine all weights.
    """

    def __init__(self, optimizer: keras.optimizers.Optimizer) -> None:
        self._optimizer = optimizer
        self._slots_of: dict[int, list] = {}
        self._add_variable, self._apply = optimizer.add_variable_from_reference, optimizer.apply
        optimizer.add_variable_from_reference = self.add_variable
        if not optimizer_parts.overrides_more(optimizer):
            optimizer.apply = self.apply
            optimizer._all_reduce_sum_gradients = lambda pairs: pairs  # they are already sums
            optimizer._distributed_tf_update_step = self.update_each
        self.forget_traces()

    def forget_traces(self) -> None:
        """Drop all functions: attributes of the optimizer may have changed."""
        make = functools.partial(device_functions.DeviceFunctions, constants=self._constants)
        self._update_on_devices, self._average_on_devices = make(self._update_group), make(self._average_group)
        self._mean_on_devices, self._increment_on_devices = make(self._mean_group), make(_increment)
        self._reset_on_devices = make(_reset)
        self._square_on_devices, self._scale_on_devices = make(device_functions.half_squares), make(_scaled)
        self._constrain_on_devices = device_functions.DeviceFunctions(_constrain, self._constraints)

    def _constants(self) -> tuple:
        """Return what the optimizer's methods read besides variables, so that other values get other traces."""
        numbers = {name: value for name, value in vars(self._optimizer).items() if isinstance(value, _PLAIN_TYPES)}
        return (repr(numbers),)

    def _constraints(self) -> tuple:
        return tuple(id(variable.constraint) for variable in self._optimizer._trainable_variables)

    def add_variable(self, reference_variable: keras.Variable, *args: Any, **kwargs: Any) -> keras.Variable:
        """Create a slot on the device of its variable."""
        device = variable_placement.device_of(reference_variable)
        add = self._add_variable
        if device_kinds.is_logical_core(device):  # Keras would refuse variables of another strategy than its own
            add = functools.partial(base_optimizer.BaseOptimizer.add_variable_from_reference, self._optimizer)
        with variable_placement.creating_on(device):
            slot = add(reference_variable, *args, **kwargs)
        self._slots_of.setdefault(id(reference_variable), []).append(slot)
        return slot

    def slots_of(self, variable: Any) -> list[keras.Variable]:
        """Return the list of the slots of a variable."""
        return self._slots_of.get(id(variable), [])

    def apply(self, grads: Iterable, trainable_variables: Iterable | None = None) -> None:
        """Update variables, each on its device; arguments as in `keras.optimizers.Optimizer.apply`."""
        optimizer, gradients = self._optimizer, list(grads)
        variables = list(optimizer._trainable_variables if trainable_variables is None else trainable_variables)
        if len(gradients) != len(variables) or not gradients:
            self._apply(gradients, trainable_variables)  # Keras refuses this, or does nothing
            return
        if not optimizer.built:
            optimizer.build(variables)
        optimizer._check_variables_are_known(variables)
        gradients, variables = optimizer._filter_empty_gradients(gradients, variables)
        gradients, variables = optimizer._overwrite_variables_directly_with_gradients(gradients, variables)
        if gradients:
            (self._accumulate if optimizer.gradient_accumulation_steps else self._update)(gradients, variables)
            if optimizer.use_ema:
                self._average()
            self._constrain(variables)
        optimizer._iterations.assign_add(1)

    def apply_values(self, gradients: list, variables: list[keras.Variable], learning_rate: tf.Tensor,
                     iterations: tf.Tensor) -> None:
        """Update, decay and constrain variables inside a program that cannot read the optimizer's own variables.

        Args:
            gradients: list of tensors, one per variable, or None for a variable that no loss depends on.
            iterations: number of updates before this one, a scalar; the caller counts updates.

        Raises:
            ValueError: the optimizer works on all weights at once, or there are no gradients.
        """
        gradients, variables = self._optimizer._filter_empty_gradients(gradients, variables)
        self._refuse_what_devices_cannot_hold(variables)
        optimizer_parts.refuse_work_on_all_weights(self._optimizer, 'a program on servers or TPUs')
        self._update_on_devices(variables, (gradients,), shared=(learning_rate, iterations))
        self._constrain(variables)

    def _accumulate(self, gradients: list, variables: list) -> None:
        """Add gradients to their sums, or update with the means in every `gradient_accumulation_steps`-th step."""
        optimizer = self._optimizer
        sums = [optimizer._accumulated_gradients[optimizer._get_variable_index(variable)] for variable in variables]

        def update() -> None:
            self._update(self._mean_on_devices(sums, (gradients,)), variables)
            self._reset_on_devices([each for each in optimizer._accumulated_gradients if each is not None])

        def increment() -> None:
            self._increment_on_devices(sums, (gradients,))

        tf.cond(_is_due(optimizer._iterations.value, optimizer.gradient_accumulation_steps), update, increment)

    def _mean_group(self, sums: list, gradients: list) -> list[tf.Tensor]:
        steps = self._optimizer.gradient_accumulation_steps
        return [(tf.convert_to_tensor(gradient) + each.value) / steps for gradient, each in zip(gradients, sums)]

    def _update(self, gradients: list, variables: list) -> None:
        """Clip gradients, decay weights and update them."""
        optimizer = self._optimizer
        self._refuse_what_devices_cannot_hold(variables)
        if self._clips_by_global_norm():
            gradients = self._clip_by_global_norm(gradients, variables, optimizer.global_clipnorm)
        if optimizer_parts.is_own(optimizer, '_backend_update_step'):
            optimizer._backend_update_step(gradients, variables, optimizer.learning_rate)
        else:
            self._update_on_devices(variables, (gradients,), shared=self._numbers())

    def update_each(self, unused_strategy: Any, gradients_and_variables: Iterable, unused_rate: Any) -> None:
        """Update the variables that an optimizer's own `_backend_update_step`, such as Nadam's, passes on to Keras."""
        optimizer = self._optimizer
        gradients, native = zip(*gradients_and_variables)
        variables = [optimizer._trainable_variables[optimizer._get_variable_index(each)] for each in native]
        self._update_on_devices(variables, (gradients,), shared=self._numbers())

    def _update_group(self, variables: list, gradients: list, *numbers: tf.Tensor) -> None:
        """Update variables; Keras passes its learning rate as a variable, whose arithmetic works with any dtype."""
        optimizer = self._optimizer
        with self._numbers_are(*numbers):
            if not self._clips_by_global_norm():
                gradients = optimizer._clip_gradients(gradients)
            for gradient, variable in zip(gradients, variables):
                self._decay(variable)
                optimizer.update_step(gradient, variable_placement.native(variable), optimizer.learning_rate)

    def _clips_by_global_norm(self) -> bool:
        return bool(self._optimizer.global_clipnorm and not self._optimizer.clipnorm)

    def _decay(self, variable: keras.Variable) -> None:
        """Decay a weight unless Keras excludes it by the name of its `tf.Variable`, such as 'dense/kernel:0'."""
        optimizer, native = self._optimizer, variable_placement.native(variable)
        if optimizer_parts.is_own(optimizer, '_apply_weight_decay'):
            optimizer._apply_weight_decay([variable])
        elif optimizer.weight_decay is not None and optimizer._use_weight_decay(native):
            rate = tf.cast(optimizer.learning_rate, native.dtype)
            native.assign_sub(native * tf.cast(optimizer.weight_decay, native.dtype) * rate)

    def _clip_by_global_norm(self, gradients: list, variables: list, limit: float) -> list:
        """Clip by the global norm; a norm that is not finite makes all gradients NaN, as in Keras."""
        halves = self._square_on_devices(variables, (gradients,))
        norm = tf.sqrt(2.0 * losses.add_up([half for half in halves if half is not None]))
        scale = limit / tf.maximum(norm, limit) + (norm - norm)
        return self._scale_on_devices(variables, (gradients,), shared=(scale,))

    def _average(self) -> None:
        """Update moving averages; some variables have none, such as the scales of float8 layers."""
        optimizer, variables = self._optimizer, self._optimizer._trainable_variables
        averaged = [variable for variable, average in zip(variables, optimizer._model_variables_moving_average)
                    if average is not None]
        self._average_on_devices(averaged, shared=self._numbers())
        if optimizer.ema_overwrite_frequency:
            tf.cond(_is_due(optimizer.iterations, optimizer.ema_overwrite_frequency),
                    lambda: optimizer._overwrite_model_variables_with_average_value(variables), lambda: None)

    def _average_group(self, variables: list, *numbers: Any) -> None:
        optimizer = self._optimizer
        averages = [optimizer._model_variables_moving_average[optimizer._get_variable_index(variable)]
                    for variable in variables]
        with self._numbers_are(*numbers), self._attributes_are(_model_variables_moving_average=averages):
            optimizer._update_model_variables_moving_average(variables)

    def _constrain(self, variables: list) -> None:
        self._constrain_on_devices([variable for variable in variables if variable.constraint is not None])

    def _refuse_what_devices_cannot_hold(self, variables: Iterable) -> None:
        if any(device_kinds.has_static_shapes_only(variable_placement.device_of(variable)) for variable in variables):
            slots = [slot for slots in self._slots_of.values() for slot in slots]
            optimizer_parts.refuse_all_but_slots(self._optimizer, slots, 'a TPU')

    def _numbers(self) -> tuple[tf.Tensor, tf.Tensor]:
        return tf.convert_to_tensor(self._optimizer.learning_rate), self._optimizer._iterations.value.read_value()

    def _numbers_are(self, learning_rate: Any, iterations: Any) -> contextlib.AbstractContextManager[None]:
        """Replace the optimizer's learning rate and number of the step by arguments of a function."""
        rate, count = self._optimizer._learning_rate, self._optimizer._iterations
        return self._attributes_are(
            _learning_rate=_standing_for(rate, learning_rate) if isinstance(rate, keras.Variable)
            else lambda: learning_rate,
            _iterations=_standing_for(count, iterations))

    @contextlib.contextmanager
    def _attributes_are(self, **values: Any) -> Iterator[None]:
        attributes = vars(self._optimizer)
        before = {name: attributes[name] for name in values}
        attributes.update(values)
        try:
            yield
        finally:
            attributes.update(before)


def _standing_for(variable: Any, value: Any) -> keras.Variable:
    """Return a Keras variable that reads as a given tensor."""
    stand_in = copy.copy(variable)
    stand_in._value = value
    return stand_in


def _is_due(count: Any, interval: int) -> tf.Tensor:
    return tf.equal((tf.convert_to_tensor(count) + 1) % interval, 0)


def _increment(sums: list, gradients: list) -> None:
    for each, gradient in zip(sums, gradients):
        each.value.assign_add(tf.convert_to_tensor(gradient))


def _reset(sums: list) -> None:
    for each in sums:
        each.value.assign(tf.zeros_like(each.value))


def _constrain(variables: list) -> None:
    for variable in variables:
        variable.assign(variable.constraint(variable))


def _scaled(unused_variables: list, gradients: list, factor: tf.Tensor) -> Any:
    """Multiply gradients by a scalar; like Keras, it first adds up the rows that an embedding looked up twice."""
    return [tf.convert_to_tensor(gradient) * tf.cast(factor, gradient.dtype) for gradient in gradients]
