"""LARS, an optimizer for large batches."""

from typing import Any

import keras
import tensorflow as tf
from keras import ops


@keras.saving.register_keras_serializable(package='lingpipe')
class LARS(keras.optimizers.Optimizer):
    """Momentum for large batches, with a learning rate for each variable (arXiv 1708.03888, section 4).

    g is the gradient of the variable w, and v is the slot. Norms are over the whole variable, in at least float32::

        trust = eeta * |w| / (|g| + weight_decay * |w| + epsilon), or 1 if |w| or |g| is 0
        step  = learning_rate * trust * (g + weight_decay * w)
        v     = momentum * v + step
        w     = w - v                           with Nesterov: w - (momentum * v + step)

    The learning rate is inside v ("scaled momentum"), as in TensorFlow's own LARS. For variables that `skip_list`
    matches, step = learning_rate * g. The same holds for sparse gradients (`tf.IndexedSlices`).

    Args:
        momentum: share of v that remains in the next step, in [0, 1).
        weight_decay: share of w that is added to g. With `weight_decay` above 0, the loss should contain no other
            penalty on the weights.
        skip_list: sequence of texts. It matches a variable whose path contains one of the texts. The default matches
            biases, EvoNorm, and layers whose names contain 'batch_norm'.
        **kwargs: arguments that all Keras optimizers have, such as `global_clipnorm`.

    Raises:
        ValueError: `skip_list` is a single text, or a number is out of its range.
    """

    def __init__(self, learning_rate: float = 0.01, momentum: float = 0.9, weight_decay: float = 1e-4,
                 eeta: float = 0.001, epsilon: float = 0.0, nesterov: bool = False,
                 skip_list: Any = ('batch_norm', 'evonorm', 'bias'), name: str = 'lars', **kwargs: Any) -> None:
        # Keras's own weight decay stays None: it would not pass through the momentum.
        super().__init__(learning_rate=learning_rate, name=name, **kwargs)
        if isinstance(skip_list, str):
            raise ValueError(f'LARS: skip_list={skip_list!r} is one text, but takes a sequence of texts. Write '
                             f'[{skip_list!r}].')
        if not 0 <= momentum < 1:
            raise ValueError(f'LARS: momentum={momentum} must be at least 0 and less than 1. Set 0.9.')
        for field, value in (('weight_decay', weight_decay), ('eeta', eeta), ('epsilon', epsilon)):
            if not 0 <= value < float('inf'):
                raise ValueError(f'LARS: {field}={value} must be finite and at least 0. Set a number such as 0.001.')
        self.momentum, self.nesterov = momentum, nesterov
        self.eeta, self.epsilon = eeta, epsilon
        self._decay_in_gradient = weight_decay
        self.skip_list = tuple(skip_list)

    def build(self, variables: list[keras.Variable]) -> None:
        """Create a slot named `momentum` for each variable."""
        if self.built:
            return
        super().build(variables)
        self._momentums = self.add_optimizer_variables(variables, 'momentum')
        paths = [getattr(variable, 'path', variable.name) for variable in variables]
        self._skips = [any(text in path for text in self.skip_list) for path in paths]

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Update one variable and its slot by the formulas of the class. The gradient may be `tf.IndexedSlices`."""
        index = self._get_variable_index(variable)
        slot = self._momentums[index]
        learning_rate = ops.cast(learning_rate, variable.dtype)
        if self._skips[index] or isinstance(gradient, tf.IndexedSlices):
            step = learning_rate * ops.cast(tf.convert_to_tensor(gradient), variable.dtype)
        else:
            step = self._adapted_step(ops.cast(gradient, variable.dtype), variable, learning_rate)
        self.assign(slot, self.momentum * slot + step)
        self.assign_sub(variable, self.momentum * slot + step if self.nesterov else slot)

    def _adapted_step(self, gradient: Any, variable: Any, learning_rate: Any) -> tf.Tensor:
        decay = self._decay_in_gradient if self._use_weight_decay(variable) else 0.0
        weight_norm, gradient_norm = _norm(variable), _norm(gradient)
        trust = ops.divide_no_nan(self.eeta * weight_norm, gradient_norm + decay * weight_norm + self.epsilon)
        trust = ops.where(ops.logical_and(weight_norm > 0, gradient_norm > 0), trust, 1.0)
        return learning_rate * ops.cast(trust, variable.dtype) * (gradient + decay * variable)

    def get_config(self) -> dict[str, Any]:
        """Return the config from which `from_config` makes an equal optimizer. It contains no slots."""
        return {
            **super().get_config(), 'momentum': self.momentum, 'weight_decay': self._decay_in_gradient,
            'eeta': self.eeta, 'epsilon': self.epsilon, 'nesterov': self.nesterov, 'skip_list': list(self.skip_list)}


def _norm(x: Any) -> tf.Tensor:
    x = ops.convert_to_tensor(x)
    return ops.sqrt(ops.sum(ops.square(ops.cast(x, keras.backend.result_type(x.dtype, 'float32')))))
