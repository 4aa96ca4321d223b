"""How the dense layers of a Transformer start."""

import keras


def kernel_initializer(scale=1.0):
    """Returns a new initializer: variance scale^2 / fan_in, so that outputs are `scale` times as large as inputs.

    Args:
        scale: factor of the standard deviation.
    """
    return keras.initializers.VarianceScaling(scale**2, 'fan_in', 'truncated_normal')
