"""What adapts a layer of preprocessing to data, in a drawn model."""

import numpy as np


def adapted(layer, *size):
    """Adapt a layer to random numbers of a size, or to the strings 'a' and 'b' where there is none."""
    if size:
        layer.adapt(np.random.default_rng(2).normal(1.0, 2.0, size=(16, *size)).astype('float32'))
    else:
        layer.adapt(np.array([['a'], ['b'], ['a']]))
    return layer
