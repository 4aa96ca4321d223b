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


class _Accumulation:
    """Makes an optimizer sum gradients on the device of each variable; Keras would do all of it on the first device."""

    def __init__(self, optimizer: keras.optimizers.Optimizer) -> None:
        self._optimizer = optimizer
        self._means = device_functions.DeviceFunctions(self._mean_group)
        self._increments = device_functions.DeviceFunctions(_increment)
        self._resets = device_functions.DeviceFunctions(_reset)
        optimizer._backend_increment_gradient_accumulators = self.increment
        optimizer._backend_reset_gradient_accumulators = self.reset
        if not optimizer_parts.is_own(optimizer, '_backend_apply_gradients'):
            optimizer._backend_apply_gradients = self.apply_gradients

    def apply_gradients(self, gradients: list, variables: list) -> None:
        """Add gradients or update weights, depending on the step, and update averages in both cases, as in Keras."""
        optimizer, steps = self._optimizer, self._optimizer.gradient_accumulation_steps
        accumulators = list(map(self._accumulator_of, variables))

        def update() -> None:
            means = optimizer._clip_gradients(self._means(variables, (gradients,)))
            optimizer._apply_weight_decay(variables)
            optimizer._backend_update_step(means, variables, optimizer.learning_rate)
            optimizer._backend_reset_gradient_accumulators()

        is_due = tf.equal((optimizer._iterations.value + 1) % steps, 0)
        tf.cond(is_due, update, lambda: optimizer._backend_increment_gradient_accumulators(gradients, accumulators))
        if optimizer.use_ema:
            self._average()

    def _average(self) -> None:
        optimizer, frequency = self._optimizer, self._optimizer.ema_overwrite_frequency
        variables = optimizer._trainable_variables
        optimizer._update_model_variables_moving_average(variables)
        if frequency:
            tf.cond(tf.equal((optimizer.iterations + 1) % frequency, 0),
                    lambda: optimizer._overwrite_model_variables_with_average_value(variables), lambda: None)

    def increment(self, gradients: list, accumulators: list) -> None:
        """Add gradients to their accumulators, on the accumulators' devices."""
        self._increments(accumulators, (gradients,))

    def reset(self) -> None:
        """Set all accumulators to zero, on their devices."""
        self._resets(self._optimizer._accumulated_gradients)

    def _mean_group(self, variables: list, gradients: list) -> list[tf.Tensor]:
        steps = self._optimizer.gradient_accumulation_steps
        return [(tf.convert_to_tensor(gradient) + self._accumulator_of(variable).value) / steps
                for variable, gradient in zip(variables, gradients)]

    def _accumulator_of(self, variable: Any) -> keras.Variable:
        return self._optimizer._accumulated_gradients[self._optimizer._get_variable_index(variable)]


def _increment(accumulators: list, gradients: list) -> None:
    for accumulator, gradient in zip(accumulators, gradients):
        accumulator.value.assign_add(tf.convert_to_tensor(gradient))


def _reset(accumulators: list) -> None:
    for accumulator in accumulators:
        accumulator.value.assign(tf.zeros_like(accumulator.value))


def place(optimizer: keras.optimizers.Optimizer) -> keras.optimizers.Optimizer:
    """Make an optimizer keep its slots, and do its arithmetic, on the device of each variable.

    Otherwise it would do all arithmetic on the first device. Its own methods compute the same as before: the update,
    weight decay, clipping (`global_clipnorm` moves one scalar per variable), accumulation of gradients, the moving
    average of `use_ema` and the constraints of variables. The optimizers inside a `LossScaleOptimizer` or a
    `MultiOptimizer` are placed.

    Returns:
        The same optimizer, whose slots are moved; one that is already placed keeps its methods.

    Raises:
        ValueError: the optimizer scales the loss by itself.
    """
    optimizer_parts.refuse_own_scaling(optimizer)
    if loss_scaling.is_scaling(optimizer):
        place(optimizer.inner_optimizer)
    elif isinstance(optimizer, keras.optimizers.MultiOptimizer):
        _place_parts(optimizer)
    elif not hasattr(optimizer, '_device_placement'):
        optimizer._device_placement = _DevicePlacement(optimizer)
    optimizer_parts.move_slots(optimizer)
    return optimizer


def apply_values(optimizer: keras.optimizers.Optimizer, gradients: Any, variables: list[keras.Variable],
                 learning_rate: tf.Tensor, iterations: tf.Tensor) -> None:
    """Update, decay and constrain variables inside a program that cannot read a placed optimizer's own variables.

    Args:
        gradients: list of tensors, one per variable, or None for a variable that no loss depends on.
        iterations: number of updates before this one, a scalar; the caller counts updates.

    Raises:
        ValueError: the optimizer works on all weights at once, or there are no gradients.
    """
    optimizer._device_placement.apply_values(gradients, variables, learning_rate, iterations)


def slots_of(optimizer: keras.optimizers.Optimizer, variable: keras.Variable) -> list[keras.Variable]:
    """Return the list of the slots of a variable in a placed optimizer."""
    return optimizer._device_placement.slots_of(variable)


def _place_parts(optimizer: keras.optimizers.Optimizer) -> None:
    """Place the optimizers inside an optimizer, some of which are created when the weights are known."""
    for part in optimizer.optimizers:
        place(part)
    if hasattr(optimizer, '_device_placement'):
        return
    optimizer._device_placement, build = True, optimizer.build

    def build_and_place(variables: list) -> None:
        build(variables)
        for part in optimizer.optimizers:
            place(part)

    optimizer.build = build_and_place


class _DevicePlacement:
    """The methods that replace an optimizer's own, to compute on the device of each variable.

    ::

        all variables at once       apply, clipping by a global norm, _backend_update_step: the optimizer's own
        variable by variable        weight decay, update_step, moving averages, constraints, accumulation: also the
                                    optimizer's own, but as one function per device, whose arguments are the learning
                                    rate and the number of the step

    Keras's order of calls, and the method of this class that replaces each::

        optimizer.apply                                  apply: puts constraints back that apply_gradients took off
          _backend_apply_gradients                       apply_gradients: constraints by device, after Keras's own:
            _clip_gradients                                clip
            _apply_weight_decay                            decay
            _backend_update_step
              _all_reduce_sum_gradients                    nothing: they are sums already
              _distributed_tf_update_step                  update: one function for each device, of update_step
            _update_model_variables_moving_average         move_averages

    Keras's TensorFlow methods, which use `tf.distribute`, are replaced. Methods that a class of optimizers defines
    itself are not.
    """

    def __init__(self, optimizer: keras.optimizers.Optimizer) -> None:
        self._optimizer = optimizer
        self._variables, self._constraints, self._slots = [], {}, []
        self._slots_of: dict[int, list] = {}
        if optimizer.gradient_accumulation_steps:
            _Accumulation(optimizer)
        self._keep_own_methods(optimizer)
        self._make_functions()
        optimizer.apply, optimizer.build = self.apply, self.build
        optimizer.add_variable_from_reference = self.add_variable
        optimizer._backend_apply_gradients = self.apply_gradients
        optimizer._all_reduce_sum_gradients = lambda pairs: pairs  # they are already sums
        optimizer._distributed_tf_update_step = self.update
        optimizer._apply_weight_decay = self.decay
        optimizer._update_model_variables_moving_average = self.move_averages
        if not optimizer_parts.is_own(optimizer, '_clip_gradients'):
            optimizer._clip_gradients = self.clip

    def _keep_own_methods(self, optimizer: keras.optimizers.Optimizer) -> None:
        self._apply, self._build = optimizer.apply, optimizer.build
        self._add_variable = optimizer.add_variable_from_reference
        self._apply_gradients = optimizer._backend_apply_gradients
        self._clip = optimizer._clip_gradients
        self._move_averages = optimizer._update_model_variables_moving_average
        self._decays_its_way = optimizer_parts.is_own(optimizer, '_apply_weight_decay')
        self._decay = optimizer._apply_weight_decay if self._decays_its_way else self._decay_all

    def _make_functions(self) -> None:
        make = functools.partial(device_functions.DeviceFunctions, constants=self._constants)
        self._updates, self._decays = make(self._update_group), make(self._decay_group)
        self._moves = make(self._move_group)
        self._clips, self._limits = make(self._clip_group), make(self._constrain)
        self._halves, self._scales = make(device_functions.half_squares), make(_scaled)

    def _constants(self) -> tuple:
        """Return what the optimizer's methods read besides variables, so that other values get other traces."""
        numbers = {name: value for name, value in vars(self._optimizer).items() if isinstance(value, _PLAIN_TYPES)}
        return repr(numbers), *map(id, self._constraints.values())

    def build(self, variables: list) -> None:
        """Create all slots as the optimizer does, and move those that are not on the device of their variable."""
        self._build(variables)
        optimizer_parts.move_slots(self._optimizer)

    def add_variable(self, reference_variable: keras.Variable, *args: Any, **kwargs: Any) -> keras.Variable:
        """Create a slot on the device of its variable."""
        device = variable_placement.device_of(reference_variable)
        add = self._add_variable
        if device_kinds.is_logical_core(device):  # Keras would refuse variables of another strategy than its own
            add = functools.partial(base_optimizer.BaseOptimizer.add_variable_from_reference, self._optimizer)
        with variable_placement.creating_on(device):
            self._slots.append(add(reference_variable, *args, **kwargs))
        self._slots_of.setdefault(id(reference_variable), []).append(self._slots[-1])
        return self._slots[-1]

    def slots_of(self, variable: Any) -> list[keras.Variable]:
        """Return the list of the slots of a variable."""
        return self._slots_of.get(id(variable), [])

    def apply(self, *args: Any, **kwargs: Any) -> Any:
        """Apply gradients, and put the constraints of variables back, which `apply_gradients` has taken off."""
        try:
            return self._apply(*args, **kwargs)
        finally:
            for variable in self._limited(self._variables):
                variable.constraint = self._constraints[id(variable)]
            self._variables, self._constraints = [], {}

    def apply_gradients(self, gradients: list, variables: list) -> None:
        """Update variables, then compute their constraints, each on its device; see `apply`."""
        self._variables = variables
        self._constraints = _constraints_of(variables)
        self._apply_gradients(gradients, variables)
        self._limits(self._limited(variables))
        for variable in self._limited(variables):
            variable.constraint = None

    def apply_values(self, gradients: list, variables: list, learning_rate: Any, iterations: Any) -> None:
        """Update variables inside a program of a server or TPU; see `apply_values` of this module."""
        gradients, variables = self._optimizer._filter_empty_gradients(gradients, variables)
        self._refuse_what_devices_cannot_hold(variables)
        optimizer_parts.refuse_work_on_all_weights(self._optimizer, 'a program on servers or TPUs')
        self._constraints = _constraints_of(variables)
        if self._has_decay():
            self._decays(variables, shared=(learning_rate, iterations))
        self._updates(variables, (gradients,), (learning_rate, iterations))
        self._limits(self._limited(variables))

    def _refuse_what_devices_cannot_hold(self, variables: Iterable) -> None:
        if any(device_kinds.has_static_shapes_only(variable_placement.device_of(variable)) for variable in variables):
            optimizer_parts.refuse_all_but_slots(self._optimizer, self._slots, 'a TPU')

    def _limited(self, variables: list) -> list[keras.Variable]:
        return [variable for variable in variables if id(variable) in self._constraints]

    def _constrain(self, variables: list) -> None:
        for variable in variables:
            variable.assign(self._constraints[id(variable)](variable))

    def update(self, unused_strategy: Any, gradients_and_variables: Any, learning_rate: Any) -> None:
        """Update the variables of each device by one function, instead of Keras's `_distributed_tf_update_step`."""
        gradients, variables = zip(*gradients_and_variables)
        self._refuse_what_devices_cannot_hold(variables)
        own = learning_rate is self._optimizer._learning_rate
        self._updates(variables, (gradients,), self._numbers() if own else (
            *self._numbers(), tf.convert_to_tensor(learning_rate)))

    def _update_group(self, variables: list, gradients: list, own_rate: Any, iterations: Any,
                      learning_rate: Any = None) -> None:
        """Update variables; Keras passes its learning rate as a variable, whose arithmetic works with any dtype."""
        with self._numbers_are(own_rate, iterations):
            learning_rate = self._optimizer.learning_rate if learning_rate is None else learning_rate
            for gradient, variable in zip(gradients, variables):
                self._optimizer.update_step(gradient, variable, learning_rate)

    def decay(self, variables: list) -> None:
        """Decay the weights of each device by one function, if the optimizer has weight decay."""
        if self._has_decay():
            self._decays(variables, shared=self._numbers())

    def _has_decay(self) -> bool:
        return self._decays_its_way or self._optimizer.weight_decay is not None

    def _decay_group(self, variables: list, *numbers: Any) -> None:
        with self._numbers_are(*numbers):
            self._decay(variables)

    def _decay_all(self, variables: list) -> None:
        """Decay weights as Keras does, by the names of their `tf.Variable`s, such as 'dense/kernel:0'."""
        optimizer = self._optimizer
        for variable in filter(optimizer._use_weight_decay, map(variable_placement.native, variables)):
            decay, rate = (tf.cast(number, variable.dtype)
                           for number in (optimizer.weight_decay, optimizer.learning_rate))
            variable.assign_sub(variable * decay * rate)

    def _numbers(self) -> tuple[tf.Tensor, tf.Tensor]:
        return tf.convert_to_tensor(self._optimizer.learning_rate), self._optimizer._iterations.value.read_value()

    def _numbers_are(self, learning_rate: Any, iterations: Any) -> contextlib.AbstractContextManager[None]:
        """Replace the optimizer's numbers, because a compiled function cannot read a variable of another device."""
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

    def clip(self, gradients: list) -> list:
        """Clip by the first option that is set, as Keras does."""
        optimizer = self._optimizer
        by_norm, by_global_norm = ((limit or 0) > 0 for limit in (optimizer.clipnorm, optimizer.global_clipnorm))
        if by_global_norm and not by_norm:
            return self._clip_by_global_norm(gradients, optimizer.global_clipnorm)
        return self._clips(self._variables, (gradients,)) if by_norm or optimizer.clipvalue else gradients

    def _clip_group(self, unused_variables: list, gradients: list) -> list:
        return self._clip(gradients)

    def _clip_by_global_norm(self, gradients: list, limit: float) -> list:
        """Clip by the global norm; a norm that is not finite makes all gradients NaN, as in Keras."""
        halves = self._halves(self._variables, (gradients,))
        norm = tf.sqrt(2.0 * losses.add_up([half for half in halves if half is not None]))
        scale = limit / tf.maximum(norm, limit) + (norm - norm)
        return self._scales(self._variables, (gradients,), (scale,))

    def move_averages(self, variables: list) -> None:
        """Update moving averages; some variables have none, such as the scales of float8 layers."""
        averages = self._optimizer._model_variables_moving_average
        self._moves([variable for variable, average in zip(variables, averages) if average is not None],
                    shared=self._numbers())

    def _move_group(self, variables: list, *numbers: Any) -> None:
        optimizer = self._optimizer
        averages = [optimizer._model_variables_moving_average[optimizer._get_variable_index(variable)]
                    for variable in variables]
        with self._numbers_are(*numbers), self._attributes_are(_model_variables_moving_average=averages):
            self._move_averages(variables)


def _constraints_of(variables: list) -> dict[int, Callable]:
    return {id(variable): variable.constraint for variable in variables
            if isinstance(variable, keras.Variable) and variable.constraint is not None}


def _standing_for(variable: Any, value: Any) -> keras.Variable:
    """Return a Keras variable that reads as a given tensor."""
    stand_in = copy.copy(variable)
    stand_in._value = value
    return stand_in


def _scaled(unused_variables: list, gradients: list, factor: tf.Tensor) -> Any:
    """Multiply gradients by a scalar; like Keras, it first adds up the rows that an embedding looked up twice."""
    return [tf.convert_to_tensor(gradient) * tf.cast(factor, gradient.dtype) for gradient in gradients]
