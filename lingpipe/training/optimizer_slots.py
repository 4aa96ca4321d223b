"""What an optimizer keeps beside each weight, which the memory of a device must have room for."""

import keras
import numpy as np

from lingpipe.training import optimizer


def num_slots(train_params):
    """Counts the tensors of a weight's size that training keeps beside it, moving averages included.

    Args:
        train_params: `task.train` Params.
    """
    weight = keras.Variable(np.zeros([2, 3]))
    kept = optimizer.build_optimizer(train_params, [weight]).variables
    return sum(variable.shape == weight.shape for variable in kept) + bool(train_params.ema_decay)
