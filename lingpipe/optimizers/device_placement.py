"""Placement of a Keras optimizer on several devices. Each weight is updated on the device of the weight."""

import contextlib
import copy
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import keras
import tensorflow as tf

from lingpipe.devices import device_kinds, variable_placement
from lingpipe.optimizers import optimizer_parts, training_optimizer
from lingpipe.private_api import base_optimizer
from lingpipe.stages import losses


def place(optimizer: keras.optimizers.Optimizer) -> keras.optimizers.Optimizer:
    """Make an optimizer update each variable on the device of the variable.

    Call this function again after variables have moved, or after attributes of the optimizer have changed.

    Returns:
        The same optimizer.

    Raises:
        ValueError: the optimizer scales the loss, but is not Keras's `LossScaleOptimizer`.
    """
    optimizer_parts.refuse_own_scaling(optimizer)
    if training_optimizer.is_scaling(optimizer):
        place(optimizer.inner_optimizer)
        return optimizer
    has_parts = isinstance(optimizer, keras.optimizers.MultiOptimizer)
    if not hasattr(optimizer, '_device_placement'):
        # Keras itself would compute much on the first device.
        optimizer._device_placement = None if has_parts else DevicePlacement(optimizer)
        optimizer.build = functools.partial(_build, optimizer, optimizer.build)
    elif not has_parts:
        of(optimizer).forget_traces()
    for part in optimizer.optimizers if has_parts else []:
        place(part)
    optimizer_parts.move_slots(optimizer)
    return optimizer


def _build(optimizer: keras.optimizers.Optimizer, build: Callable, *args: Any, **kwargs: Any) -> None:
    """Build an optimizer, and place the slots that `build` creates."""
    build(*args, **kwargs)  # also creates the parts of a `MultiOptimizer`
    place(optimizer)
    if placement := of(optimizer):
        placement.refuse_what_devices_cannot_hold(optimizer._trainable_variables)


def of(optimizer: keras.optimizers.Optimizer) -> 'DevicePlacement':
    """Return the `DevicePlacement` of a placed optimizer."""
    return optimizer._device_placement


class DevicePlacement:
    """A replacement for Keras's update that runs one function per device.

    The function calls the optimizer's methods, such as `update_step`, for the weights of its device. An optimizer that
    works on all weights at once runs as in Keras.
    """

    def __init__(self, optimizer: keras.optimizers.Optimizer) -> None:
        self._optimizer = optimizer
        self._slots: list[keras.Variable] = []
        self._add_variable = optimizer.add_variable_from_reference
        optimizer.add_variable_from_reference = self.add_variable
        if not optimizer_parts.works_on_all_weights(optimizer):
            optimizer._backend_apply_gradients = self._update
        self.forget_traces()

    def forget_traces(self) -> None:
        """Drop the traced functions. Call this when attributes of the optimizer have changed."""
        make = DeviceFunctions
        self._update_on_devices, self._constrain_on_devices = make(self._update_group), make(_constrain)
        self._square_on_devices, self._scale_on_devices = make(half_squares), make(_scaled)

    def add_variable(self, reference_variable: keras.Variable, *args: Any, **kwargs: Any) -> keras.Variable:
        """Create a slot on the device of `reference_variable`."""
        device = variable_placement.device_of(reference_variable)
        add = self._add_variable
        if device_kinds.is_logical_core(device):  # Keras would refuse variables of another strategy than its own
            add = functools.partial(base_optimizer.BaseOptimizer.add_variable_from_reference, self._optimizer)
        with variable_placement.creating_on(device):
            slot = add(reference_variable, *args, **kwargs)
        self._slots.append(slot)
        return slot

    def apply_values(self, gradients: list, variables: list[keras.Variable], learning_rate: tf.Tensor,
                     iterations: tf.Tensor) -> None:
        """Decay, update and constrain variables with a given learning rate and step number.

        Args:
            gradients: for each variable a tensor, or None if the loss does not depend on the variable.
            iterations: scalar, the number of earlier updates. The caller counts updates.

        Raises:
            ValueError: the optimizer overrides a method that works on all weights, or there are no gradients.
        """
        gradients, variables = self._optimizer._filter_empty_gradients(gradients, variables)
        optimizer_parts.refuse_work_on_all_weights(self._optimizer, 'a program on servers or TPUs')
        self._update_on_devices(variables, (gradients,), shared=(learning_rate, iterations))
        self._constrain_on_devices([variable for variable in variables if variable.constraint is not None])

    def _update(self, gradients: list, variables: list) -> None:
        """Clip gradients, then decay and update weights."""
        optimizer = self._optimizer
        if self._clips_by_global_norm():
            gradients = self._clip_by_global_norm(gradients, variables, optimizer.global_clipnorm)
        # Numbers are arguments, because a compiled function cannot read a variable of another device.
        numbers = tf.convert_to_tensor(optimizer.learning_rate), optimizer._iterations.value.read_value()
        self._update_on_devices(variables, (gradients,), shared=numbers)

    def _update_group(self, variables: list, gradients: list, *numbers: tf.Tensor) -> None:
        """Update the weights of one device."""
        optimizer = self._optimizer
        with self._numbers_are(*numbers):  # as in Keras, a rate without a schedule is a Keras variable, for any dtype
            if not self._clips_by_global_norm():
                gradients = optimizer._clip_gradients(gradients)
            for gradient, variable in zip(gradients, variables):
                self._decay(variable)
                optimizer.update_step(gradient, variable_placement.native(variable), optimizer.learning_rate)

    def _clips_by_global_norm(self) -> bool:
        return bool(self._optimizer.global_clipnorm and not self._optimizer.clipnorm)

    def _decay(self, variable: keras.Variable) -> None:
        """Apply weight decay."""
        if optimizer_parts.is_own(self._optimizer, '_apply_weight_decay'):
            self._optimizer._apply_weight_decay([variable])
        else:  # Keras may exclude a variable by its `tf.Variable` name, such as 'dense/kernel:0'
            base_optimizer.BaseOptimizer._apply_weight_decay(self._optimizer, [variable_placement.native(variable)])

    def _clip_by_global_norm(self, gradients: list, variables: list, limit: float) -> list:
        """Clip gradients to a maximum global norm."""
        halves = self._square_on_devices(variables, (gradients,))
        norm = tf.sqrt(2.0 * losses.add_up(halves))  # one scalar per variable goes to another device
        scale = clipping_factor(norm, limit) + (norm - norm)  # as in Keras, NaN if the norm is not finite
        return self._scale_on_devices(variables, (gradients,), shared=(scale,))

    def refuse_what_devices_cannot_hold(self, variables: Iterable) -> None:
        """Raise ValueError if a weight is on a TPU, and the optimizer has variables that a TPU cannot hold."""
        if any(device_kinds.has_static_shapes_only(variable_placement.device_of(variable)) for variable in variables):
            optimizer_parts.refuse_all_but_slots(self._optimizer, self._slots, 'a TPU')

    @contextlib.contextmanager
    def _numbers_are(self, learning_rate: Any, iterations: Any) -> Iterator[None]:
        """Replace the optimizer's learning rate and step number in the `with` block."""
        attributes = vars(self._optimizer)
        rate, count = self._optimizer._learning_rate, self._optimizer._iterations
        attributes['_iterations'] = _standing_for(count, iterations)
        attributes['_learning_rate'] = (
            _standing_for(rate, learning_rate) if isinstance(rate, keras.Variable) else lambda: learning_rate)
        try:
            yield
        finally:
            attributes.update(_learning_rate=rate, _iterations=count)


def _standing_for(variable: Any, value: Any) -> keras.Variable:
    """Return a copy of a Keras variable that has the value `value`."""
    stand_in = copy.copy(variable)
    stand_in._value = value
    return stand_in


def _constrain(variables: list) -> None:
    for variable in variables:
        variable.assign(variable.constraint(variable))


def _scaled(unused_variables: list, gradients: list, factor: tf.Tensor) -> Any:
    """Multiply gradients by a scalar."""
    # As in Keras, sparse gradients become dense, and repeated rows are added up.
    return [tf.convert_to_tensor(gradient) * tf.cast(factor, gradient.dtype) for gradient in gradients]


class DeviceFunctions:
    """A function that runs once per device, with the variables of that device.

    Args:
        function: function `(variables, *per_variable, *shared)` that returns one tensor per variable, or None.
    """

    def __init__(self, function: Callable) -> None:
        self._function, self._functions = function, {}

    def __call__(self, variables: Any, per_variable: tuple = (), shared: tuple = ()) -> list:
        """Call the function once per device.

        Args:
            variables: list of Keras variables, or of `tf.Variable`.
            per_variable: lists, each with a tensor or None for each variable. A None skips the variable.

        Returns:
            List with one result per variable. The result of a skipped variable is None.
        """
        groups, results = {}, [None] * len(variables)
        for position, row in enumerate(zip(variables, *per_variable)):
            if all(part is not None for part in row):
                groups.setdefault(variable_placement.device_of(row[0]), []).append((position, *row))
        for device, rows in groups.items():
            positions, group, *of_group = map(list, zip(*rows))
            with tf.device(device):
                values = self._of(device, group)(*of_group, *shared)
            for position, value in zip(positions, values or []):
                results[position] = value
        return results

    def _of(self, device: str, variables: list) -> Callable:
        """Return a function that calls `function` with the variables of a device."""
        traced = list(map(variable_placement.native, variables))
        key = tuple(map(id, traced))
        if key not in self._functions:  # after variables have moved, an old trace would update old copies
            # A call is not inlined: devices compile in parallel, and the graph of the step stays small.
            call = device_kinds.one_call(device, lambda *arguments: self._function(variables, *arguments))
            self._functions[key] = call, traced  # keeps the objects, so that their ids are not reused
        return self._functions[key][0]


def clipping_factor(norm: tf.Tensor, limit: float) -> tf.Tensor:
    """Return the factor that limits the global norm of gradients to `limit`, a positive number."""
    return limit / tf.maximum(norm, limit)


def half_squares(unused_variables: Any, gradients: Any) -> list:
    """Return half the squared norm of each gradient."""
    # As in Keras, a repeated row of a sparse gradient counts twice.
    given = [gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient for gradient in gradients]
    return [tf.nn.l2_loss(losses.in_full_precision(values)) for values in given]


def scaled(unused_variables: Any, tensors: Any, factor: tf.Tensor) -> list:
    """Multiply tensors or `tf.IndexedSlices` by a scalar, for `DeviceFunctions`."""
    return [times(tensor, factor) for tensor in tensors]


def times(tensor: Any, factor: tf.Tensor) -> Any:
    """Multiply a tensor or `tf.IndexedSlices` by a scalar of any dtype. The result has the dtype of the tensor."""
    factor = tf.cast(factor, tensor.dtype)
    if isinstance(tensor, tf.IndexedSlices):
        return tf.IndexedSlices(tensor.values * factor, tensor.indices, tensor.dense_shape)
    return tensor * factor
