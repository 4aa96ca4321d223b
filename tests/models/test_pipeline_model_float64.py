"""Models in float64: `PipelineModel.fit` against `keras.Model.fit`, to the precision of float64."""

import keras
import numpy as np
import pytest

import lingpipe

layers, o = keras.layers, keras.optimizers
RANDOM = np.random.default_rng(0)
X, Y, WEIGHTS = RANDOM.normal(size=(9, 4)), RANDOM.normal(size=(9, 2)), RANDOM.uniform(size=9)


@pytest.fixture
def in_float64():
    before = keras.config.dtype_policy()
    keras.config.set_floatx('float64')
    keras.config.set_dtype_policy('float64')
    yield
    keras.config.set_floatx('float32')
    keras.config.set_dtype_policy(before)


def make_model():
    keras.utils.set_random_seed(0)
    hidden = layers.Dense(8, 'tanh', kernel_regularizer='l2', activity_regularizer='l2')
    return keras.Sequential([keras.Input([4]), hidden, layers.BatchNormalization(trainable=False), layers.Dense(2)])


def fit(model, loss, optimizer):
    model.compile(optimizer(), loss)
    log = model.fit(X, Y, batch_size=9, epochs=3, sample_weight=WEIGHTS, shuffle=False, verbose=0).history['loss']
    return [np.array(log), *model.get_weights()]


@pytest.mark.parametrize('reduction, optimizer', [
    ('sum_over_batch_size', lambda: o.Adam(0.1, global_clipnorm=0.1)), ('sum', lambda: o.SGD(0.1)),
    ('mean_with_sample_weight', lambda: o.SGD(0.1))])
def test_nothing_passes_through_float32(reduction, optimizer, in_float64):
    loss = keras.losses.MeanSquaredError(reduction=reduction)
    pipe = lingpipe.GPipeLayer.from_keras(make_model(), num_partitions=2, num_micro_batches=3)
    found, expected = fit(lingpipe.PipelineModel(pipe), loss, optimizer), fit(make_model(), loss, optimizer)
    for value, other in zip(found, expected, strict=True):
        assert value.dtype == 'float64'
        np.testing.assert_allclose(value, other, rtol=1e-11, atol=1e-13)
