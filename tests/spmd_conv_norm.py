"""A small image model of blocks that are alike, with frozen batch norm in the blocks and around them, as one program."""

import keras
import numpy as np
import tensorflow as tf

from lingpipe.layers.keras_params import KerasParams
from lingpipe.spmd import spmd_pipeline, spmd_step
from lingpipe.stages import losses
from tests import plain_stack

SHAPE, NUM_CLASSES = (4, 4, 2), 3


class Block(keras.layers.Layer):
    """A residual block of two convolutions, each with batch norm."""

    def __init__(self, channels=4, **kwargs):
        super().__init__(**kwargs)
        self.convolutions = [keras.layers.Conv2D(channels, 3, padding='same', use_bias=False) for _ in range(2)]
        self.norms = [keras.layers.BatchNormalization(trainable=False) for _ in range(2)]

    def build(self, input_shape):
        for convolution, norm in zip(self.convolutions, self.norms):
            convolution.build(input_shape)
            norm.build(input_shape)
        super().build(input_shape)

    def call(self, inputs, training=False):
        outputs = inputs
        for convolution, norm in zip(self.convolutions, self.norms):
            outputs = keras.ops.tanh(norm(convolution(outputs), training=training))
        return inputs + outputs


def layer_params(num_blocks, channels=4):
    """Return the params of the layers."""
    cls, norm = keras.layers, KerasParams(keras.layers.BatchNormalization, trainable=False)
    return [KerasParams(cls.Conv2D, filters=channels, kernel_size=1), norm,
            *[KerasParams(Block, channels=channels)] * num_blocks, norm, KerasParams(cls.GlobalAveragePooling2D),
            KerasParams(cls.Dense, units=NUM_CLASSES)]


def make_batch(num_rows):
    random = np.random.default_rng(0)
    return (random.normal(size=(num_rows, *SHAPE)).astype(np.float32),
            random.integers(NUM_CLASSES, size=num_rows).astype(np.int32))


def loss_fn():
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def make_pipe(layers, num_rows, **fields):
    """Return a built pipeline whose moving averages are not those of new layers."""
    pipe = plain_stack.make_pipe(layers, **fields)
    pipe.build_from_specs(tf.TensorSpec([num_rows, *SHAPE]))
    random = np.random.default_rng(1)
    for variable in pipe.weights:
        if 'moving' in variable.path:
            variable.assign(random.uniform(0.5, 1.5, variable.shape))
    return pipe


def make_step(pipe, num_rows, is_partitioned=False, **fields):
    """Return the `SpmdPipeline` and the `SpmdStep` of a pipeline, for so many rows of a replica."""
    pipeline = spmd_pipeline.of_layer(pipe, tf.TensorSpec([num_rows, *SHAPE]), is_partitioned)
    metrics = losses.as_metrics(loss_fn())
    return pipeline, spmd_step.SpmdStep(
        pipeline, lambda targets, outputs: metrics(*targets, outputs), make_optimizer(), **fields)


def make_optimizer():
    return keras.optimizers.SGD(0.1, momentum=0.9)
