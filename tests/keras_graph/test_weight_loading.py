"""Weights that are loaded into variables on several devices: in parts, in place, and none forgotten."""

import keras
import numpy as np
import pytest

from lingpipe.keras_graph import hub_model, model_segments
from lingpipe.layers import base_layer

LARGE = (3 * 2**18 + 1, 2)  # more than a part, and no multiple of one


def variables(*shapes):
    with base_layer.unallocated_variables():
        found = [keras.Variable(keras.initializers.RandomNormal(seed=1), shape=shape) for shape in shapes]
    awaited = hub_model.AwaitedWeights(found)
    for place, variable in enumerate(found):
        model_segments.place_variable(variable, f'CPU:{place + 1}')
    return awaited, found


@pytest.mark.parametrize('shape', [LARGE, (3, 2), (2,), ()])
def test_values_arrive_whole(shape):
    awaited, (variable,) = variables(shape)
    values = np.random.default_rng(0).normal(size=shape).astype('float32')
    with awaited.loading():
        variable.assign(values)
    np.testing.assert_array_equal(variable, values)


def test_what_is_not_loaded_gets_its_initial_value():
    awaited, (loaded, new) = variables((2, 3), (4,))
    with awaited.loading():
        loaded.assign(np.ones([2, 3]))
    np.testing.assert_array_equal(new, keras.initializers.RandomNormal(seed=1)((4,)))


def test_other_shapes_are_refused():
    awaited, (variable,) = variables((2, 3))
    with pytest.raises(ValueError, match=r'has shape \(2, 3\), but the weights to load have \(3, 2\)'):
        with awaited.loading():
            variable.assign(np.zeros([3, 2]))
