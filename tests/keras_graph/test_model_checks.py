"""What a model does not take is refused before anything is traced, and the message says what to change."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import lingpipe
from lingpipe.keras_graph import hub_model
from tests import needs


def spec(*shape, dtype=tf.int32):
    return tf.TensorSpec(shape, dtype)


def build(model, specs):
    lingpipe.GPipeLayer.Params().Set(name='body', num_partitions=2, model=model).Instantiate().build_from_specs(specs)


def sums():
    """A model with two inputs by name."""
    inputs = {name: keras.Input([4], name=name) for name in ('left', 'right')}
    return keras.Model(inputs, keras.layers.Dense(2)(keras.layers.Dense(3)(keras.layers.Add()(list(inputs.values())))))


def test_more_than_a_model_takes_is_left_out():
    random = np.random.default_rng(0)
    values = {name: random.normal(size=[2, 4]).astype('float32') for name in ('a_third', 'right', 'left')}
    model = lingpipe.PipelineModel(lingpipe.GPipeLayer.from_keras(sums(), num_partitions=2))
    expected = model.predict({name: values[name] for name in ('left', 'right')}, verbose=0)
    p = lingpipe.GPipeLayer.Params().Set(name='body', num_partitions=2, model=lingpipe.KerasModelParams(sums))
    pipe = p.Instantiate()
    pipe.build_from_specs(tf.nest.map_structure(lambda value: tf.TensorSpec(value.shape), values))
    pipe.model.set_weights(model.source.get_weights())
    np.testing.assert_allclose(pipe(values), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize('specs, words', [
    ({'left': spec(2, 4)}, r"takes the tensors \['left', 'right'\], but the input gives \['left'\]. Use"),
    (spec(2, 4), r"takes the tensors \['left', 'right'\], but the input gives 1. Use"),
    ({'left': spec(2, 4), 'right': spec(2, 5)}, 'expected shape=.None, 4., found shape=.2, 5.')])
def test_inputs_that_a_model_does_not_take_are_refused(specs, words):
    with pytest.raises(ValueError, match=words):
        build(lingpipe.KerasModelParams(sums), specs)


GPT2 = {'vocabulary_size': 20, 'num_layers': 2, 'num_heads': 2, 'hidden_dim': 8, 'intermediate_dim': 16,
        'max_sequence_length': 8}
TOKENS = {'token_ids': spec(2, 8), 'padding_mask': spec(2, 8, dtype=tf.bool)}


@needs.keras_hub
@pytest.mark.parametrize('fields, specs, words', [
    ({'backbone': 'BertBackbone', 'head': 'text_classifier', 'head_arguments': {'num_classes': 2}}, TOKENS,
     "'segment_ids', 'token_ids'], but the input gives"),
    ({'backbone': 'GPT2Backbone'}, TOKENS['token_ids'], 'gives 1. Use'),
    ({'backbone': 'GPT2Backbone'}, {'token_ids': spec(2, 9), 'padding_mask': spec(2, 9, dtype=tf.bool)},
     'sequence_length=9 .* which knows 8 positions. Set it to 8 at most')])
def test_inputs_that_a_task_does_not_take_are_refused(fields, specs, words):
    with pytest.raises(ValueError, match=words):
        build(hub_model.KerasHubModel.Params().Set(backbone_arguments=GPT2, **fields), specs)


@needs.keras_hub
def test_rotary_positions_may_be_any():
    arguments = {**GPT2, 'rotary_percentage': 0.5}
    build(hub_model.KerasHubModel.Params().Set(backbone='GPTNeoXBackbone', backbone_arguments=arguments),
          {'token_ids': spec(2, 9), 'padding_mask': spec(2, 9, dtype=tf.bool)})


class Halved(keras.layers.Layer):
    """Branches on a tensor, and assigns a variable if `counts`."""

    counts = False

    def build(self, input_shape):
        self.count = self.add_weight(shape=(), initializer='zeros', trainable=False, name='count')

    def call(self, inputs):
        if self.counts:
            self.count.assign_add(1.0)
        if keras.ops.sum(inputs) > 0.0:
            return inputs / 2.0
        return inputs

    def compute_output_spec(self, inputs):
        return keras.KerasTensor(inputs.shape, inputs.dtype)


class HalvedInFunction(Halved):
    call = tf.function(Halved.call)


class HalvedAndCounted(HalvedInFunction):
    counts = True


def test_a_branch_on_a_tensor_needs_a_function_as_in_keras(assert_close):
    x = np.concatenate([np.ones([2, 4]), -np.ones([2, 4])]).astype('float32')
    with pytest.raises(TypeError, match=r'Halved.call[\s\S]*decorate this function with @tf.function'):
        lingpipe.GPipeLayer.from_keras(keras.Sequential([keras.Input([4]), Halved()]))
    pipe = lingpipe.GPipeLayer(layers=[HalvedInFunction()], num_partitions=1, num_micro_batches=2)
    assert_close(pipe(x), x * [[.5], [.5], [1], [1]])
    with pytest.raises(ValueError, match="assigns '.*count' inside a .* leave the function undecorated"):
        lingpipe.GPipeLayer(layers=[HalvedAndCounted()], num_partitions=1, num_micro_batches=2)(x, training=True)


def test_an_error_of_a_layer_is_raised_unchanged():
    class Wrong(keras.layers.Layer):
        def call(self, inputs):
            return inputs if inputs.shape[0] is None else inputs + len(3)

    inputs = keras.Input([4])
    with pytest.raises(TypeError, match="object of type 'int' has no len"):
        lingpipe.GPipeLayer.from_keras(keras.Model(inputs, Wrong()(inputs)))


def test_a_layer_that_takes_the_batch_in_its_second_dimension_is_refused():
    inputs = keras.Input([3, 5])
    hidden = keras.layers.Dense(2, name='inner')(keras.ops.transpose(inputs, (1, 0, 2)))
    with pytest.raises(ValueError, match="layer 'inner' has the batch in dimension 1, .*Transpose it first"):
        lingpipe.GPipeLayer.from_keras(keras.Model(inputs, keras.ops.transpose(hidden, (1, 0, 2))), num_partitions=2)
