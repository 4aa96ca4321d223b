import keras
import numpy as np
import pytest
import tensorflow as tf

from lingpipe.keras_graph import keras_model
from lingpipe.pipeline import gpipe_layer
from tests.keras_graph.test_keras_model import assert_stages_equal_model
from tests.plain_stack import normal

layers = keras.layers


class Encoder(keras.Model):
    """Layers called in an order of its own, one of them twice, with operations, a nested model and dropout between
    them."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.dense, self.norm = layers.Dense(6, name='dense'), layers.BatchNormalization(name='norm')
        self.drop = layers.Dropout(0.0)
        self.nested = keras.Sequential([layers.Dense(6, activation='tanh', name='inside')], name='nested')

    def call(self, inputs, scale=None, training=False):
        hidden = self.drop(self.norm(self.dense(inputs)), training=training)
        hidden = keras.ops.transpose(keras.ops.transpose(self.dense(hidden))) + inputs * 0.5
        return {'deep': self.nested(hidden), 'wide': hidden if scale is None else hidden * scale}


class Own(Encoder):
    """What a graph of its layers would not do."""

    def __init__(self, how, **kwargs):
        super().__init__(**kwargs)
        self.how, self.counter = how, self.add_weight(shape=(), trainable=False, initializer='zeros', name='counter')
        self.seed = keras.random.SeedGenerator(1)

    def call(self, inputs, training=False):
        if self.how == 'branches on training' and training:
            inputs = inputs * 2.0
        if self.how == 'sets training':
            return self.norm(inputs, training=False)
        if self.how == 'counts':
            self.counter.assign_add(1.0)
        if self.how == 'reads a weight':
            inputs = inputs * (self.counter + 1.0)
        if self.how == 'draws numbers':
            inputs = inputs + keras.random.normal((6,), seed=self.seed)
        if self.how == 'brings numbers':
            inputs = inputs + np.random.normal(size=(6,)).astype('float32')
        if self.how == 'reshapes by the batch size':
            inputs = keras.ops.reshape(inputs, (keras.ops.shape(inputs)[0], 6))
        if self.how == 'adds a loss':
            self.add_loss(keras.ops.mean(inputs))
        return self.dense(inputs)


def wrapped(model):
    inputs = keras.Input((6,))
    return keras.Model(inputs, model(layers.Dense(6, name='before')(inputs)))


def test_a_model_with_its_own_call_is_cut_between_its_layers():
    graph = assert_stages_equal_model(wrapped(Encoder(name='encoder')), normal(4, 6), num_stages=4)
    names = [unit.name for unit in graph.units]
    assert {'before', 'encoder/dense', 'encoder/norm', 'encoder/dense:1', 'encoder/nested/inside'} < set(names)


def test_a_model_called_twice_and_with_more_arguments_is_cut():
    left, right, encoder = keras.Input((6,)), keras.Input((6,)), Encoder(name='encoder')
    first = encoder(left, scale=right)
    model = keras.Model([left, right], [first, encoder(first['wide'])['deep']])
    graph = assert_stages_equal_model(model, [normal(4, 6), 2 * normal(4, 6)], num_stages=4)
    assert {'encoder/dense', 'encoder/dense:3'} < {unit.name for unit in graph.units}


@pytest.mark.parametrize('how', [
    'branches on training', 'sets training', 'counts', 'reads a weight', 'draws numbers', 'brings numbers',
        'adds a loss', 'reshapes by the batch size'])
def test_a_model_that_is_more_than_calls_of_layers_stays_whole(how):
    graph = keras_model.ModelGraph(wrapped(Own(how, name='own')))
    assert [unit.name for unit in graph.units] == ['before', 'own']


def test_a_model_with_a_branch_on_a_tensor_or_a_mask_stays_whole():
    class Branching(Encoder):
        def call(self, inputs):
            return tf.cond(tf.reduce_sum(inputs) > 0, lambda: self.dense(inputs), lambda: inputs)

    class Masked(Encoder):
        def call(self, inputs, mask=None):
            return self.dense(inputs)

    for model in (Branching(name='own'), Masked(name='own')):
        assert [unit.name for unit in keras_model.ModelGraph(wrapped(model)).units] == ['before', 'own']


def test_too_many_partitions_for_a_whole_model_are_refused_by_name():
    with pytest.raises(ValueError, match="Model 'own' stays whole.*num_partitions=3.*into layers"):
        gpipe_layer.GPipeLayer.from_keras(wrapped(Own('counts', name='own')), num_partitions=3)


def test_inputs_are_cast_to_the_precision_of_the_model():
    """`CategoryEncoding` returns float32, though its symbol in mixed precision is float16."""
    keras.config.set_dtype_policy('mixed_float16')
    inputs = keras.Input([3], dtype='int32')
    encoded = layers.CategoryEncoding(6, output_mode='multi_hot')(inputs)
    model = keras.Model(inputs, Encoder(name='encoder')(encoded)['wide'])
    keras.config.set_dtype_policy('float32')
    x = np.array([[1, 2, 3], [0, 5, 5]])
    actual, expected = gpipe_layer.GPipeLayer.from_keras(model, num_partitions=2, num_micro_batches=1)(x), model(x)
    assert actual.dtype == expected.dtype == tf.float16
    np.testing.assert_allclose(actual, expected, atol=1e-2)
