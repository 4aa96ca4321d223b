"""Layers that a user might write: with state, random numbers, added losses, Python control flow, children built
late."""

import keras
import numpy as np
import tensorflow as tf

layers, ops = keras.layers, keras.ops


class IntegerCounter(layers.Layer):
    """Counts the rows that it has seen in training."""

    def build(self, shape):
        self.rows = self.add_weight(shape=(), dtype='int32', initializer='zeros', trainable=False, name='rows')

    def call(self, inputs, training=False):
        if training:
            self.rows.assign(self.rows + ops.shape(inputs)[0])
        return inputs * 0.9


class RunningScale(layers.Layer):
    """Divides by a moving average of the size of its inputs, which it updates first."""

    def build(self, shape):
        self.scale = self.add_weight(shape=(), initializer='ones', trainable=False, name='scale')

    def call(self, inputs, training=False):
        if training:
            self.scale.assign(0.9 * self.scale + 0.1 * ops.stop_gradient(ops.mean(ops.square(inputs))))
        return inputs / (0.5 + self.scale)


class InferenceNorm(layers.Layer):
    """A batch norm that is always in inference mode, beside one that is never called."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.norm = layers.BatchNormalization(momentum=0.9)
        self.unused = layers.BatchNormalization(momentum=0.9)

    def build(self, shape):
        self.norm.build(shape)
        self.unused.build(shape)

    def call(self, inputs):
        return self.norm(inputs, training=False)


class AddedLoss(layers.Layer):
    """Adds the mean square of its inputs to the loss."""

    def call(self, inputs):
        self.add_loss(0.1 * ops.mean(ops.square(inputs)))
        return inputs


class AddedSum(layers.Layer):
    """Adds losses that are sums over the rows: a scalar, and a loss for each row."""

    def call(self, inputs):
        self.add_loss(0.01 * ops.sum(ops.square(inputs)))
        self.add_loss(0.01 * ops.mean(ops.square(inputs), axis=tuple(range(1, len(inputs.shape)))))
        return inputs


class Noise(layers.Layer):
    """Draws random numbers without a seed, as the sampling of a variational autoencoder does."""

    def call(self, inputs, training=False):
        return inputs + 0.3 * keras.random.normal(ops.shape(inputs), dtype=inputs.dtype) if training else inputs


class SharedNoise(layers.Layer):
    """Draws from a generator that it may share with other layers."""

    def __init__(self, generator, **kwargs):
        super().__init__(**kwargs)
        self.generator = generator

    def call(self, inputs, training=False):
        if not training:
            return inputs
        return inputs + 0.3 * keras.random.normal(ops.shape(inputs), dtype=inputs.dtype, seed=self.generator)


class AlwaysOn(layers.Dropout):
    """Drops out in inference too, as Monte Carlo dropout does."""

    def call(self, inputs, training=False):
        return super().call(inputs, training=True)


class InFunction(layers.Layer):
    """Reads its weight in a `tf.function` of its own."""

    def build(self, shape):
        self.scale = self.add_weight(shape=(shape[-1],), initializer='ones', name='scale')

    @tf.function
    def scaled(self, inputs):
        return inputs * self.scale

    def call(self, inputs):
        return ops.tanh(self.scaled(inputs))


class LateChild(layers.Layer):
    """Has a build of its own, and a child that is built by its first call."""

    def __init__(self, units, **kwargs):
        super().__init__(**kwargs)
        self.dense = layers.Dense(units, activation='tanh')

    def build(self, shape):
        self.scale = self.add_weight(shape=(1,), initializer='ones', name='scale')

    def call(self, inputs):
        return self.scale * self.dense(inputs)


class UnusedWeight(layers.Layer):
    """Has a trainable weight that its outputs do not depend on."""

    def build(self, shape):
        self.scale = self.add_weight(shape=(shape[-1],), initializer='ones', name='scale')
        self.unused = self.add_weight(shape=(3,), initializer='ones', name='unused')

    def call(self, inputs):
        return inputs * self.scale


class MaskByValue(layers.Layer):
    """Hands on its inputs with a mask that it computes from them."""

    def call(self, inputs):
        return inputs * 1.0

    def compute_mask(self, inputs, mask=None):
        return ops.any(ops.greater(inputs, -0.5), axis=-1)


class SubclassedBlock(keras.Model):
    """A model whose own call says how its layers are joined."""

    def __init__(self, units, **kwargs):
        super().__init__(**kwargs)
        self.first = layers.Dense(units, activation='tanh')
        self.second = layers.Dense(units)

    def call(self, inputs):
        return inputs + self.second(self.first(inputs))


def residual_block(units, name):
    """A Functional model with a branch, a batch norm and a skip."""
    inputs = keras.Input([units])
    hidden = layers.Dense(units, activation='tanh')(inputs)
    hidden = layers.BatchNormalization(momentum=0.9)(hidden)
    return keras.Model(inputs, layers.Add()([inputs, layers.Dense(units)(hidden)]), name=name)


class Fourier(layers.Layer):
    """Makes complex numbers."""

    def call(self, inputs):
        return tf.signal.fft(tf.cast(inputs, tf.complex64))

    def compute_output_spec(self, inputs):
        return keras.KerasTensor(inputs.shape, 'complex64')


class InverseFourier(layers.Layer):
    """Makes real numbers of complex ones."""

    def call(self, inputs):
        weights = tf.complex(tf.range(inputs.shape[-1], dtype=tf.float32), 0.5)
        return tf.math.real(tf.signal.ifft(inputs * weights))

    def compute_output_spec(self, inputs):
        return keras.KerasTensor(inputs.shape, 'float32')


class TiedHead(layers.Layer):
    """Multiplies by the weight of a layer that it holds."""

    def __init__(self, tied, attribute, **kwargs):
        super().__init__(**kwargs)
        self.tied = tied
        self.attribute = attribute

    def call(self, inputs):
        return ops.matmul(inputs, ops.transpose(getattr(self.tied, self.attribute)))


class Parts(layers.Layer):
    """Returns a dictionary."""

    def build(self, shape):
        self.scale = self.add_weight(shape=(shape[-1],), initializer='ones', name='scale')

    def call(self, inputs):
        return {'scaled': inputs * self.scale, 'bent': ops.tanh(inputs)}


class WithNone(layers.Layer):
    """Returns None where its symbolic output is a tensor."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.dense = layers.Dense(3, activation='tanh')

    def build(self, shape):
        self.dense.build(shape)

    def call(self, inputs):
        return self.dense(inputs), None

    def compute_output_spec(self, inputs):
        return keras.KerasTensor((*inputs.shape[:-1], 3),
                                 self.compute_dtype), keras.KerasTensor(inputs.shape, inputs.dtype)


def two_towers(units, name):
    """A Functional model with two inputs and two outputs, whose towers share a layer."""
    left, right = keras.Input([units]), keras.Input([units])
    shared = layers.Dense(units, activation='tanh')
    both = layers.Add()([shared(left), layers.Dense(units)(shared(right))])
    return keras.Model([left, right], [both, layers.Dense(3)(both)], name=name)


def adapted(layer, *size):
    """Adapt a layer to random numbers of a size, or to the strings 'a' and 'b' where there is none."""
    if size:
        layer.adapt(np.random.default_rng(2).normal(1.0, 2.0, size=(16, *size)).astype('float32'))
    else:
        layer.adapt(np.array([['a'], ['b'], ['a']]))
    return layer
