"""Optimizers with a past or with methods of their own: `PipelineModel.fit` against `keras.Model.fit`."""

import keras
import numpy as np
import pytest

import lingpipe

layers = keras.layers
o = keras.optimizers
X, Y = np.random.default_rng(0).normal(size=(8, 5)).astype('float32'), np.zeros([8, 1], 'float32')


def make_model():
    keras.utils.set_random_seed(0)
    body = layers.Dense(4, kernel_constraint='non_neg', bias_initializer='ones', name='body')
    return keras.Sequential([keras.Input([5]), body, layers.Dense(1, kernel_initializer='ones', name='head')])


def pipelined(source):
    return lingpipe.PipelineModel(lingpipe.GPipeLayer.from_keras(source, num_partitions=2, num_micro_batches=2))


def fit(model, optimizer, epochs=2):
    model.compile(optimizer, 'mse')
    model.fit(X, Y, batch_size=4, epochs=epochs, shuffle=False, verbose=0)


def assert_slots_are_beside_weights(optimizer, model):
    homes = {variable.path.replace('/', '_'): variable.value.device for variable in model.trainable_variables}
    assert len(set(homes.values())) == 2
    for slot in optimizer.variables:
        assert not slot.shape.rank or slot.value.device == homes[slot.name.rpartition('_')[0]]


def test_an_optimizer_and_its_model_resume_where_they_were(assert_close):
    plain, source = make_model(), make_model()
    for model in (plain, source):
        fit(model, o.Adam(0.05))
    model = pipelined(source)
    assert_slots_are_beside_weights(source.optimizer, source)
    fit(plain, plain.optimizer)
    fit(model, source.optimizer)
    assert_close(source.get_weights(), plain.get_weights())
    lingpipe.GPipeLayer.from_keras(source, num_partitions=2, devices=['CPU:2', 'CPU:5'])
    for model in (plain, source):
        model.fit(X, Y, batch_size=4, shuffle=False, verbose=0)
    assert_close(source.get_weights(), plain.get_weights())
    assert_slots_are_beside_weights(source.optimizer, source)


def test_a_model_without_trainable_weights_is_warned_of():
    source = make_model()
    source.trainable = False
    with pytest.warns(UserWarning, match='does not have any trainable weights'):
        fit(pipelined(source), 'sgd', epochs=1)
