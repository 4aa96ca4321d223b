import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import lingpipe
from lingpipe.keras_graph import keras_model
from tests import closeness
from tests.plain_stack import normal


def run_stages(graph, ends, inputs, training):
    """What an engine does with a cut model: every stage's segments in turn, fed from its sources."""
    results = {-1: graph.flatten_inputs(inputs)}
    stages = graph.stages(ends)
    read = {source for parts in stages for source in parts.sources}
    for index, parts in enumerate(stages):
        values = [results[producer][position] for producer, position in parts.sources]
        for segment in parts.segments:
            values = segment(values, training)
        assert index == len(ends) - 1 or all((index, position) in read for position in range(len(values)))
        results[index] = values
    return graph.pack_outputs(results[len(ends) - 1])


def even_ends(graph, num_stages):
    return [len(graph.units) * (stage + 1) // num_stages for stage in range(num_stages)]


def outcome(function, variables):
    """Call a function with no lasting effect; return its outputs and what it would have made of the variables."""
    with keras.StatelessScope():
        return function(), [np.asarray(variable.value) for variable in variables]


def assert_stages_equal_model(model, inputs, num_stages=3):
    graph = keras_model.ModelGraph(model)
    for variable in graph.model.weights:  # batch norm statistics that are not 0 and 1
        variable.assign(np.asarray(variable) + 0.01 * np.ones(variable.shape))
    ends = even_ends(graph, num_stages)
    for training in (False, True):
        state = model.non_trainable_variables
        wanted = outcome(lambda training=training: model(inputs, training=training), state)
        got = outcome(lambda training=training: run_stages(graph, ends, inputs, training), state)
        closeness.assert_close(got, wanted)
    return graph


@pytest.fixture(autouse=True)
def _seed():
    keras.utils.set_random_seed(1)


def encoder(width=6):
    inputs = keras.Input((width,))
    hidden = layers.Dense(8, activation='tanh', name='inside')(inputs)
    return keras.Model(inputs, layers.Dropout(0.5)(layers.BatchNormalization()(hidden)), name='encoder')


class Doubled(keras.Model):
    """A subclassed model, which only its call knows how to run."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.dense = layers.Dense(4)

    def call(self, inputs):
        return 2 * self.dense(inputs)


def test_skips_go_straight_from_producer_to_consumer():
    inputs = keras.Input((4,))
    skip = layers.Dense(4, name='skip')(inputs)
    hidden = layers.Dense(4, name='b')(skip)
    hidden = layers.Dense(4, name='c')(hidden)
    hidden = layers.Add(name='d')([hidden, skip])
    model = keras.Model(inputs, [hidden, skip, inputs])
    graph = assert_stages_equal_model(model, normal(2, 4), num_stages=4)
    parts = graph.stages([1, 2, 3, 4])
    assert [part.sources for part in parts] == [[(-1, 0)], [(0, 0)], [(1, 0)], [(2, 0), (0, 0), (-1, 0)]]


def test_a_segment_carries_only_what_is_still_needed():
    inputs = keras.Input((4,))
    hidden = inputs
    for _ in range(4):
        hidden = layers.Dense(4)(hidden)
    model = keras.Model(inputs, layers.Add()([hidden, inputs]))
    graph = keras_model.ModelGraph(model)
    first, _ = graph.stages([3, 5])
    values, tensor = [tf.ones([1, 4])], None
    for segment in first.segments:
        values = segment(values, False)
        assert len(values) == 1  # the input itself goes from the user to the second stage, not through the first
        assert values[0] is not tensor
        tensor = values[0]


@pytest.mark.parametrize('ends', [[2, 3, 5], [2, 4, 5], [1, 2, 3, 4, 5]])
def test_a_mask_that_attention_takes_off_is_off_in_every_cut(ends, assert_close):
    keras.utils.set_random_seed(0)
    tokens = keras.Input([5], dtype='int32')
    x = layers.Dense(4)(layers.Embedding(4, 4, mask_zero=True)(tokens))
    model = keras.Model(tokens, layers.Dense(4)(layers.Add()([x, layers.MultiHeadAttention(2, 3)(x, x)])))
    inputs, targets = np.arange(20).reshape(4, 5) % 4, normal(4, 5, 4)
    weights = model.get_weights()
    model.compile('sgd', 'mse')
    expected = model.test_on_batch(inputs, targets), model.train_on_batch(inputs, targets)
    model.set_weights(weights)
    pipe = lingpipe.PipelineModel(lingpipe.GPipeLayer.from_keras(
        model, num_partitions=len(ends), num_micro_batches=2, partition_by=ends))
    pipe.compile('sgd', 'mse')
    assert_close((pipe.test_on_batch(inputs, targets), pipe.train_on_batch(inputs, targets)), expected)


def test_shared_layers_are_one_unit_a_call():
    first, second, dense = keras.Input((6,)), keras.Input((6,)), layers.Dense(6, name='dense')
    model = keras.Model([first, second], layers.Add()([dense(first), dense(dense(second))]))
    graph = assert_stages_equal_model(model, [normal(2, 6), normal(2, 6)], num_stages=4)
    calls = [(unit.name, unit.call_index) for unit in graph.units if unit.layer is dense]
    assert calls == [('dense', 0), ('dense:1', 1), ('dense:2', 2)]
    assert [analysis.num_parameters for analysis in graph.analyses()] == [42, 0, 0, 0]


def test_nested_models_are_inlined_and_may_be_shared():
    shared = encoder()
    head = keras.Sequential([layers.Dense(5, activation='relu'), layers.Dense(2)], name='head')
    left, right = keras.Input((6,)), keras.Input((6,))
    joined = layers.Subtract()([shared(left), shared(right)])
    outer = keras.Model([left, right], head(joined), name='pair')
    first, second = keras.Input((6,)), keras.Input((6,))
    model = keras.Model([first, second], layers.Activation('tanh', name='last')(outer([first, second])))
    graph = assert_stages_equal_model(model, [normal(4, 6), normal(4, 6)])
    names = [unit.name for unit in graph.units]
    assert len(names) == len(set(names)) == 10
    assert {'pair/encoder/inside', 'pair/encoder/inside:1', 'last'} < set(names)


def test_nested_models_cast_and_reshape_their_inputs_as_keras_does():
    nested = encoder(1)
    inputs = keras.Input((), dtype='int32')
    graph = assert_stages_equal_model(keras.Model(inputs, nested(inputs)), np.array([1, 2, 3], 'int32'), num_stages=2)
    assert graph.units[0].name == 'encoder/inputs'
    assert graph.units[0].layers == []


def test_models_that_are_more_than_a_graph_stay_one_unit():
    inputs = keras.Input((6,))
    masking_model = encoder()
    masking_model.supports_masking = True
    model = keras.Model(inputs, layers.Dense(2, name='head')(masking_model(inputs)))
    graph = assert_stages_equal_model(model, normal(4, 6), num_stages=2)
    assert [unit.name for unit in graph.units] == ['encoder', 'head']


def test_analyses_count_from_shapes():
    inputs = keras.Input((None, 6))
    hidden = layers.BatchNormalization()(layers.Dense(8, use_bias=False)(inputs))
    dense, norm = keras_model.ModelGraph(keras.Model(inputs, hidden)).analyses(tf.TensorSpec([32, 10, 6]))
    assert (dense.num_parameters, dense.flops.contractions) == (48, 2 * 10 * 6 * 8)
    assert norm.num_parameters == 16
    assert dense.outputs == [tf.TensorSpec([1, 10, 8])]


def test_a_variable_of_two_stages_lives_on_the_first():
    inputs, dense = keras.Input((6,)), layers.Dense(6)
    graph = keras_model.ModelGraph(keras.Model(inputs, dense(layers.Activation('relu')(dense(inputs)))))
    graph.move_variables(graph.stages([1, 2, 3]), ['CPU:3', 'CPU:4', 'CPU:5'])
    assert {variable.value.device[-5:] for variable in dense.variables} == {'CPU:3'}


@pytest.mark.parametrize(('make', 'message'), [
    (lambda: layers.Dense(3), 'is a Dense, not a keras.Model'),
    (lambda: Doubled(name='mine'), "'mine' of class Doubled is more than a graph.*keras.Model.inputs, model.inputs"),
    (lambda: keras.Sequential([layers.Dense(3)], name='late'), "'late' is not built.*keras.Input"),
    (lambda: keras.Sequential([keras.Input((3,))], name='empty'), "'empty'"),
])
def test_models_that_cannot_be_cut_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        keras_model.ModelGraph(make())


def test_a_functional_model_with_its_own_call_is_refused():
    class Scaled(keras.Model):
        def call(self, inputs, training=None, mask=None):
            return 2 * super().call(inputs, training=training, mask=mask)

    inputs = keras.Input((3,))
    with pytest.raises(ValueError, match='Scaled is more than a graph of layers'):
        keras_model.ModelGraph(Scaled(inputs, layers.Dense(3)(inputs)))


def test_layers_that_cannot_be_cut_are_refused_by_name():
    inputs = keras.Input((3,), dtype='int32')
    sparse = layers.CategoryEncoding(4, 'one_hot', sparse=True, name='encoding')(inputs)
    with pytest.raises(ValueError, match="'encoding' makes .'SparseTensor'"):
        keras_model.ModelGraph(keras.Model(inputs, layers.Dense(3)(sparse))).analyses()
    inputs = keras.Input(batch_shape=(4, 5, 6))
    recurrent = layers.Bidirectional(layers.GRU(8, stateful=True), name='reader')(inputs)
    with pytest.raises(ValueError, match="'reader' is stateful"):
        keras_model.ModelGraph(keras.Model(inputs, recurrent))
