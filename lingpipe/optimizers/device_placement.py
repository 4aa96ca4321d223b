"""A stock Keras optimizer over variables on several devices: slots and arithmetic beside each variable, same results."""

import contextlib
import functools

import tensorflow as tf
from keras.src.optimizers import base_optimizer

from lingpipe.distribute import device_kinds, variable_placement
from lingpipe.optimizers import device_functions, loss_scaling, optimizer_variables


def place(optimizer):
    """Makes an optimizer keep its slots, and do its arithmetic, on the device of each variable.

    Left alone it would do all of it on the first device. What it computes stays the same: the update, weight decay,
    `clipnorm`, `clipvalue`, `global_clipnorm` (of which one scalar a variable crosses), the moving average of `use_ema` and the
    constraints of variables.

    Args:
        optimizer: `keras.optimizers.Optimizer` that has no slots yet; it is changed in place.

    Returns:
        The same optimizer; one that is placed already is left as it is.

    Raises:
        ValueError: the optimizer divides gradients by a constant scale.
    """
    if loss_scaling.is_scaling(optimizer):
        place(optimizer.inner_optimizer)
        return optimizer
    _refuse_constant_scale(optimizer)
    if not hasattr(optimizer, '_device_placement'):
        optimizer._device_placement = _DevicePlacement(optimizer)
    return optimizer


def apply_values(optimizer, gradients, variables, learning_rate, iterations):
    """Updates variables by a placed optimizer; see `_DevicePlacement.apply_values`."""
    optimizer._device_placement.apply_values(gradients, variables, learning_rate, iterations)


class _DevicePlacement:
    """The methods that take the place of an optimizer's own."""

    def __init__(self, optimizer):
        self._optimizer = optimizer
        self._apply = optimizer.apply
        self._add_variable = optimizer.add_variable_from_reference
        self._apply_gradients = optimizer._backend_apply_gradients
        self._variables, self._constraints, self._slots = [], {}, []
        self._updates = device_functions.DeviceFunctions(self._update_group)
        self._decays = device_functions.DeviceFunctions(self._decay_group)
        self._clips = device_functions.DeviceFunctions(self._clip_group)
        self._halves = device_functions.DeviceFunctions(_half_squares)
        self._scales = device_functions.DeviceFunctions(device_functions.scaled)
        self._moves = device_functions.DeviceFunctions(self._move_averages)
        self._limits = device_functions.DeviceFunctions(self._constrain)
        optimizer.apply = self.apply
        optimizer.add_variable_from_reference = self.add_variable
        optimizer._backend_apply_gradients = self.apply_gradients
        optimizer._all_reduce_sum_gradients = lambda pairs: pairs  # they are sums already
        optimizer._distributed_tf_update_step = self.update
        optimizer._apply_weight_decay = self.decay
        optimizer._clip_gradients = self.clip
        optimizer._update_model_variables_moving_average = self.move_averages

    def add_variable(self, reference_variable, *args, **kwargs):
        device = variable_placement.device_of(reference_variable)
        add = self._add_variable
        if device_kinds.is_logical_core(device):  # Keras would refuse what belongs to another strategy than its own
            add = functools.partial(base_optimizer.BaseOptimizer.add_variable_from_reference, self._optimizer)
        with variable_placement.creating_on(device):
            self._slots.append(add(reference_variable, *args, **kwargs))
        return self._slots[-1]

    def apply(self, grads, trainable_variables=None):
        """Takes constraints off the variables meanwhile: Keras would compute them on the first device."""
        variables = list(self._optimizer._trainable_variables if trainable_variables is None else trainable_variables)
        self._constraints = {id(variable): variable.constraint for variable in variables if variable.constraint is not None}
        try:
            for variable in variables:
                variable.constraint = None
            self._apply(grads, variables)
        finally:
            for variable in variables:
                variable.constraint = self._constraints.get(id(variable))

    def apply_gradients(self, gradients, variables):
        self._variables = variables
        self._apply_gradients(gradients, variables)
        self._limits([variable for variable in variables if id(variable) in self._constraints])

    def apply_values(self, gradients, variables, learning_rate, iterations):
        """Updates, decays and constrains variables inside a program that can read none of the optimizer's numbers itself.

        Args:
            gradients: list of tensors, one a variable.
            variables: list of Keras variables.
            learning_rate: scalar.
            iterations: number of updates before this one, a scalar; it is left to the caller to count.
        """
        self._constraints = {id(variable): variable.constraint for variable in variables if variable.constraint is not None}
        if self._optimizer.weight_decay is not None:
            self._decays(variables, shared=(learning_rate,))
        self._updates(variables, (gradients,), (learning_rate, iterations))
        self._limits([variable for variable in variables if id(variable) in self._constraints])

    def _constrain(self, variables):
        for variable in variables:
            variable.assign(self._constraints[id(variable)](variable))

    def update(self, unused_strategy, gradients_and_variables, learning_rate):
        gradients, variables = zip(*gradients_and_variables)
        self._updates(variables, (gradients,), (tf.convert_to_tensor(learning_rate), self._optimizer._iterations.value.read_value()))

    def _update_group(self, variables, gradients, learning_rate, iterations):
        if device_kinds.has_static_shapes_only(variable_placement.device_of(variables[0])):
            optimizer_variables.refuse_all_but_slots(self._optimizer, self._slots, 'a TPU')
        with self._iterations_are(iterations):
            for gradient, variable in zip(gradients, variables):
                self._optimizer.update_step(gradient, variable, learning_rate)

    @contextlib.contextmanager
    def _iterations_are(self, iterations):
        """A compiled function cannot read a variable of another device."""
        variable = self._optimizer._iterations
        vars(self._optimizer)['_iterations'] = iterations
        try:
            yield
        finally:
            vars(self._optimizer)['_iterations'] = variable

    def decay(self, variables):
        if self._optimizer.weight_decay is not None:
            self._decays(variables, shared=(tf.convert_to_tensor(self._optimizer.learning_rate),))

    def _decay_group(self, variables, learning_rate):
        for variable in filter(self._optimizer._use_weight_decay, variables):
            decay, rate = (tf.cast(number, variable.dtype) for number in (self._optimizer.weight_decay, learning_rate))
            variable.value.assign_sub(variable.value * decay * rate)

    def clip(self, gradients):
        """Clips as the first option that is set says, as Keras does."""
        optimizer = self._optimizer
        if optimizer.global_clipnorm and not optimizer.clipnorm:
            return self._clip_by_global_norm(gradients, optimizer.global_clipnorm)
        if optimizer.clipnorm or optimizer.clipvalue:
            return self._clips(self._variables, (gradients,))
        return gradients

    def _clip_group(self, unused_variables, gradients):
        limit = self._optimizer.clipvalue
        if self._optimizer.clipnorm:
            return [self._optimizer._clip_by_norm(gradient) for gradient in gradients]
        return [tf.clip_by_value(gradient, -limit, limit) for gradient in gradients]

    def _clip_by_global_norm(self, gradients, limit):
        """A norm that is not finite makes all gradients NaN, as in Keras."""
        halves = self._halves(self._variables, (gradients,))
        norm = tf.sqrt(2.0 * tf.add_n(halves))
        scale = limit / tf.maximum(norm, limit) + (norm - norm)
        return self._scales(self._variables, (gradients,), (scale,))

    def move_averages(self, variables):
        """The first average is the variable itself."""
        momentum = self._optimizer.ema_momentum * tf.cast(self._optimizer.iterations.value > 0, tf.float32)
        self._moves(variables, shared=(momentum,))

    def _move_averages(self, variables, momentum):
        for variable in variables:
            average = self._optimizer._model_variables_moving_average[self._optimizer._get_variable_index(variable)]
            kept = tf.cast(momentum, variable.dtype)
            average.assign(kept * average.value + (1.0 - kept) * variable.value)


def _half_squares(unused_variables, gradients):
    return [tf.nn.l2_loss(tf.cast(gradient, tf.float32)) for gradient in gradients]


def _refuse_constant_scale(optimizer):
    if optimizer.loss_scale_factor:
        raise ValueError(
            f'The optimizer {optimizer.name!r} has loss_scale_factor={optimizer.loss_scale_factor}, a constant scale of the loss, '
            'but a pipeline computes the loss inside its last partition and scales it by itself. Leave it None, and wrap the '
            'optimizer in keras.optimizers.LossScaleOptimizer where layers compute in float16.')
