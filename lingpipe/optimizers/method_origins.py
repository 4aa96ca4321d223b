"""Which methods of an optimizer are its own, and which of them a place cannot run."""

import keras

from lingpipe.private_api import base_optimizer, tensorflow_optimizer

_OF_ALL = ('apply', 'apply_gradients', '_backend_apply_gradients', '_backend_update_step', '_clip_gradients')


def is_own(optimizer, method):
    """Whether the class of an optimizer defines a method that all optimizers have, instead of inheriting it.

    Args:
        optimizer: `keras.optimizers.Optimizer`.
        method: name of the method.
    """
    stock = getattr(tensorflow_optimizer.TFOptimizer, method), getattr(base_optimizer.BaseOptimizer, method)
    return getattr(type(optimizer), method) not in stock


def refuse_own_scaling(optimizer):
    """Raises ValueError where an optimizer scales the loss in a way that a pipeline, which computes the loss, does not know."""
    name = type(optimizer).__name__
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        if type(optimizer) is not keras.optimizers.LossScaleOptimizer:
            raise ValueError(
                f'The optimizer {name} is a LossScaleOptimizer of its own kind, but a pipeline scales the loss itself, by the rule of '
                "Keras's. Give it keras.optimizers.LossScaleOptimizer.")
    elif is_own(optimizer, 'scale_loss'):
        raise ValueError(
            f'The optimizer {name} overrides scale_loss, but a pipeline computes the loss inside its last partition and scales it by '
            'itself. Leave the method out, and wrap the optimizer in keras.optimizers.LossScaleOptimizer where layers compute in '
            'float16.')
    elif optimizer.loss_scale_factor:
        raise ValueError(
            f'The optimizer {optimizer.name!r} has loss_scale_factor={optimizer.loss_scale_factor}, a constant scale of the loss, '
            'but a pipeline computes the loss inside its last partition and scales it by itself. Leave it None, and wrap the '
            'optimizer in keras.optimizers.LossScaleOptimizer where layers compute in float16.')


def refuse_work_on_all_weights(optimizer, place):
    """Raises ValueError where an optimizer defines what happens to all weights at once, and so not weight by weight.

    Args:
        optimizer: `keras.optimizers.Optimizer`.
        place: what updates weight by weight, for the message.
    """
    own = [method for method in _OF_ALL if is_own(optimizer, method)]
    if own:
        raise ValueError(
            f'The optimizer {type(optimizer).__name__} defines {own[0]}, which works on all weights at once, but {place} updates them '
            'one by one. Choose another, such as SGD, Adam or AdamW.')
