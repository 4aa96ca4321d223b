"""A stock Keras optimizer over variables on several devices: slots and arithmetic beside each variable, same results."""

import tensorflow as tf

from lingpipe.optimizers import device_functions, loss_scaling


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


class _DevicePlacement:
    """The methods that take the place of an optimizer's own."""

    def __init__(self, optimizer):
        self._optimizer = optimizer
        self._apply = optimizer.apply
        self._add_variable = optimizer.add_variable_from_reference
        self._apply_gradients = optimizer._backend_apply_gradients
        self._clip_by_norm = optimizer._clip_by_norm
        self._decay = optimizer._apply_weight_decay
        self._devices, self._constraints = [], {}
        self._updates = device_functions.DeviceFunctions(self._update_group)
        self._moves = device_functions.DeviceFunctions(self._move_averages)
        self._limits = device_functions.DeviceFunctions(self._constrain)
        optimizer.apply = self.apply
        optimizer.add_variable_from_reference = self.add_variable
        optimizer._backend_apply_gradients = self.apply_gradients
        optimizer._backend_update_step = self.update
        optimizer._apply_weight_decay = self.decay
        optimizer._clip_gradients = self.clip
        optimizer._update_model_variables_moving_average = self.move_averages

    def add_variable(self, reference_variable, *args, **kwargs):
        with tf.device(reference_variable.value.device):
            return self._add_variable(reference_variable, *args, **kwargs)

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
        self._devices = [variable.value.device for variable in variables]
        self._apply_gradients(gradients, variables)
        self._limits([variable for variable in variables if id(variable) in self._constraints])

    def _constrain(self, variables):
        for variable in variables:
            variable.assign(self._constraints[id(variable)](variable))

    def update(self, gradients, variables, learning_rate):
        self._updates(variables, (gradients,), (tf.convert_to_tensor(learning_rate),))

    def _update_group(self, variables, gradients, learning_rate):
        for gradient, variable in zip(gradients, variables):
            self._optimizer.update_step(gradient, variable, learning_rate)

    def decay(self, variables):
        for variable in variables:
            with tf.device(variable.value.device):
                self._decay([variable])

    def clip(self, gradients):
        """Clips as the first option that is set says, as Keras does."""
        optimizer = self._optimizer
        if optimizer.clipnorm:
            return self._on_devices(self._clip_by_norm, gradients)
        if optimizer.global_clipnorm:
            return self._clip_by_global_norm(gradients, optimizer.global_clipnorm)
        if optimizer.clipvalue:
            limit = optimizer.clipvalue
            return self._on_devices(lambda gradient: tf.clip_by_value(gradient, -limit, limit), gradients)
        return gradients

    def _clip_by_global_norm(self, gradients, limit):
        """A norm that is not finite makes all gradients NaN, as in Keras."""
        halves = self._on_devices(lambda gradient: tf.nn.l2_loss(tf.cast(gradient, tf.float32)), gradients)
        norm = tf.sqrt(2.0 * tf.add_n(halves))
        scale = limit / tf.maximum(norm, limit) + (norm - norm)
        return self._on_devices(lambda gradient: gradient * tf.cast(scale, gradient.dtype), gradients)

    def _on_devices(self, function, gradients):
        results = []
        for gradient, device in zip(gradients, self._devices):
            with tf.device(device):
                results.append(function(gradient))
        return results

    def move_averages(self, variables):
        """The first average is the variable itself."""
        momentum = self._optimizer.ema_momentum * tf.cast(self._optimizer.iterations.value > 0, tf.float32)
        self._moves(variables, shared=(momentum,))

    def _move_averages(self, variables, momentum):
        for variable in variables:
            average = self._optimizer._model_variables_moving_average[self._optimizer._get_variable_index(variable)]
            kept = tf.cast(momentum, variable.dtype)
            average.assign(kept * average.value + (1.0 - kept) * variable.value)


def _refuse_constant_scale(optimizer):
    if optimizer.loss_scale_factor:
        raise ValueError(
            f'The optimizer {optimizer.name!r} has loss_scale_factor={optimizer.loss_scale_factor}, a constant scale of the loss, '
            'but a pipeline computes the loss inside its last partition and scales it by itself. Leave it None, and wrap the '
            'optimizer in keras.optimizers.LossScaleOptimizer where layers compute in float16.')
