import keras
import numpy as np
import pytest
import tensorflow as tf

from lingpipe.layers import transformer
from lingpipe.layers.keras_params import KerasParams
from lingpipe.partition import layer_analysis
from lingpipe.spmd import stage_map
from lingpipe.spmd.stage_map import recomputing
from tests import needs


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


@needs.xla_on_cpus
def test_recomputed_gradients_equal_those_of_the_function(assert_close):
    """The function may also take integers and return what gets no gradient."""
    def function(tensors):
        count, x, y = tensors
        return [tf.cast(x > 0, tf.int32), tf.sin(x) * y * tf.cast(count, tf.float32), y + 0.0]

    @tf.function(jit_compile=True, autograph=False)
    def gradients(apply, count, x, y):
        with tf.GradientTape() as tape:
            tape.watch([x, y])
            _, product, _ = apply([count, x, y])  # no gradient comes to the last output
            total = tf.reduce_sum(product**2)
        return tape.gradient(total, [x, y])

    x, y = np.random.default_rng(0).normal(size=(2, 3)).astype(np.float32)
    arguments = [tf.constant(2), tf.constant(x), tf.constant(y)]
    assert_close(gradients(recomputing(function), *arguments), gradients(function, *arguments))
