"""`PipelineModel.fit` in float16, whose loss is scaled, and in float64, against `keras.Model.fit`."""

import keras
import numpy as np
import pytest

import lingpipe

layers, o = keras.layers, keras.optimizers
random = np.random.default_rng(0)
X, Y = random.normal(size=(12, 5)), random.integers(0, 3, 12)


def cross_entropy():
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def test_float16_trains_with_a_scaled_loss_as_in_keras():
    y = np.repeat(Y[:, np.newaxis], 8, axis=1)  # the mean divides by more than the examples
    results = []
    for wrap in (lambda model: model, lambda model: lingpipe.PipelineModel(
            lingpipe.GPipeLayer.from_keras(model, num_partitions=2, num_micro_batches=1))):
        keras.utils.set_random_seed(0)
        source = keras.Sequential([keras.Input([5]), layers.Flatten(dtype='mixed_float16'), layers.Dense(
            4, 'relu', dtype='mixed_float16'), layers.Dense(32, dtype='mixed_float16'), layers.Reshape((8, 4))])
        model = wrap(source)
        optimizer = keras.optimizers.LossScaleOptimizer(
            keras.optimizers.SGD(0.1), initial_scale=2.0 ** 18, dynamic_growth_steps=3)
        model.compile(optimizer, cross_entropy())
        model.fit(X, y, batch_size=16, epochs=10, shuffle=False, verbose=0)
        results.append(
            ([w.numpy() for w in source.weights], optimizer.dynamic_scale.numpy(), optimizer.iterations.numpy()))
    (weights, scale, iterations), (pipelined, pipelined_scale, pipelined_iterations) = results
    assert (scale, iterations) == (pipelined_scale, pipelined_iterations) and 0 < iterations
    for one, other in zip(weights, pipelined):
        np.testing.assert_allclose(one, other, atol=5e-3)


def test_compile_scales_the_loss_where_layers_use_float16():
    source = keras.Sequential([keras.Input((3,)), layers.Dense(2, dtype='mixed_float16'), layers.Dense(2)])
    model = lingpipe.PipelineModel(lingpipe.GPipeLayer.from_keras(source, num_partitions=2))
    model.compile('sgd', 'mse')
    assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)


class OwnLoss(lingpipe.PipelineModel):
    """Has a loss that is computed on the whole batch."""

    def compute_loss(self, *arguments, **kwargs):
        return 1.0 * super().compute_loss(*arguments, **kwargs)


@pytest.mark.parametrize('model_class', [lingpipe.PipelineModel, OwnLoss])
@pytest.mark.parametrize('run_eagerly', [False, True])
@pytest.mark.filterwarnings('ignore:OwnLoss overrides')
def test_a_step_that_overflows_changes_nothing(model_class, run_eagerly):
    keras.utils.set_random_seed(0)
    source = keras.Sequential([keras.Input([5]), layers.Dense(3, dtype='mixed_float16'), layers.BatchNormalization()])
    model = model_class(lingpipe.GPipeLayer.from_keras(source, num_partitions=2, num_micro_batches=2))
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), initial_scale=2.0 ** 40)
    model.compile(optimizer, cross_entropy(), run_eagerly=run_eagerly)
    before = source.get_weights()
    model.fit(X, Y, verbose=0)
    for one, other in zip(source.get_weights(), before):
        np.testing.assert_array_equal(one, other)
    assert optimizer.dynamic_scale.numpy() == 2.0 ** 39


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
    return keras.Sequential([keras.Input([5]), hidden, layers.BatchNormalization(trainable=False), layers.Dense(2)])


def fit(model, loss, optimizer):
    model.compile(optimizer(), loss)
    log = model.fit(X, X[:, :2], batch_size=12, epochs=3, sample_weight=np.arange(12.0), shuffle=False, verbose=0).history['loss']
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
