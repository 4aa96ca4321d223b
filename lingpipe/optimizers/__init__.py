"""Optimizers and learning-rate schedules that Keras lacks."""

import functools

from lingpipe import hyperparams
from lingpipe.layers import keras_params
from lingpipe.optimizers.lars import LARS
from lingpipe.optimizers.learning_rate_schedules import (
    WarmupExponentialDecay,
    WarmupPiecewiseConstantDecay,
    WarmupPolynomialDecay,
)

__all__ = ['LARS', 'WarmupExponentialDecay', 'WarmupPiecewiseConstantDecay', 'WarmupPolynomialDecay']

for _name in __all__:  # the text form of params can name these classes
    _class = globals()[_name]
    hyperparams.RegisterType(_class, functools.partial(keras_params.KerasParams, _class), f'{__name__}/{_name}')
