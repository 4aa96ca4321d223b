"""Stacks of layers, built and run one layer after another."""

import math

import keras
import numpy as np
import tensorflow as tf

import lingpipe
from lingpipe.layers import base_layer


def built(layer_params, shape):
    """Build each layer on the output shape of the one before; return the layers and all output shapes."""
    layers, outputs = [params.Instantiate() for params in layer_params], [keras.KerasTensor(shape)]
    for layer in layers:
        layer.build(keras.tree.map_structure(lambda symbol: symbol.shape, outputs[-1]))
        outputs.append(layer.compute_output_spec(outputs[-1]))
    return layers, [keras.tree.map_structure(lambda symbol: symbol.shape, symbols) for symbols in outputs[1:]]


def unallocated(layer_params):
    """Do the same for photographs, without memory for weights."""
    with base_layer.unallocated_variables():
        return built(layer_params, (None, 224, 224, 3))


def weights_of(layers):
    return [variable for layer in layers for variable in layer.trainable_variables]


def count(layers):
    return sum(math.prod(variable.shape) for variable in weights_of(layers))


def run(layers, x):
    for layer in layers:
        x = layer(x)
    return x


def make_pipe(layer_params, specs, num_partitions):
    keras.utils.set_random_seed(0)
    pipe = lingpipe.GPipeLayer.Params().Set(name='pipe', layers=layer_params, num_partitions=num_partitions,
                                            num_micro_batches=2, random_seed=5).Instantiate()
    pipe.build_from_specs(specs)
    return pipe


def cross_entropy(labels, logits):
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)


def assert_gradients_are_those_of_the_layers(pipe, x, labels):
    """Compare the gradients of a pipeline with those of its layers without it."""
    out = pipe.value_and_grad(cross_entropy, x, labels)
    with tf.GradientTape() as tape:
        value = tf.reduce_mean(cross_entropy(labels, run(pipe.stack, x)))
    expected = tape.gradient(value, [variable.value for variable in pipe.trainable_variables])
    for gradient, other in zip(out.gradients, expected, strict=True):
        np.testing.assert_allclose(gradient, tf.convert_to_tensor(other), atol=1e-6)
