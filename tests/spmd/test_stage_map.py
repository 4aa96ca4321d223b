import keras
import pytest
import tensorflow as tf

from lingpipe.layers import transformer
from lingpipe.layers.keras_params import KerasParams
from lingpipe.partition import layer_analysis
from lingpipe.spmd import stage_map


def run_of(layer_params, spec):
    named = layer_analysis.named_layer_params(layer_params)
    return stage_map.longest_run(named, [spec, *[each.outputs for each in layer_analysis.analyse_layers(named, spec)]])


def dense(units, activation='relu'):
    return KerasParams(keras.layers.Dense, units=units, activation=activation)


def test_the_blocks_of_a_transformer_are_alike():
    layers = transformer.transformer_lm_layers(5, vocab_size=16, model_dim=8, hidden_dim=8, num_heads=2)
    assert run_of(layers, tf.TensorSpec([1, 4], tf.int32)) == (2, 7)


@pytest.mark.parametrize('layers, expected', [
    ([dense(8), dense(8), dense(8)], (1, 3)),  # the first one has inputs of another size
    ([dense(4), dense(4), dense(8), dense(8), dense(8), dense(8)], (3, 6)),
    ([dense(4), dense(4, 'tanh'), dense(4), dense(4)], (2, 4)),
    ([dense(5), dense(6)], (0, 0))])
def test_layers_are_alike_with_equal_params_and_shapes(layers, expected):
    assert run_of(layers, tf.TensorSpec([1, 4])) == expected
