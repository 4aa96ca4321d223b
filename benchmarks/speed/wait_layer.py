"""A layer that computes nothing and takes its time: pipelines of it share no processor, however many devices they
have."""

import time

import keras
import tensorflow as tf


class Wait(keras.layers.Layer):
    """Passes its input on after a while, and the gradients after as long for its input and again for its weight.

    So F, B and W of a split backward pass take the same time. Where nobody wants the gradient of its input, a W takes
    both::

        forward    x ─> wait ─> * scale ─> outputs
        backward   gradient ─> wait ─┬─> * scale ─> gradient by x         B
                                     └─> wait ─> gradient by scale        W

    Sleeping is stateful, and what is stateful is never recomputed: its B takes as long with recomputation as without.

    Args:
        milliseconds: time of each of the three.
    """

    def __init__(self, milliseconds, **kwargs):
        super().__init__(**kwargs)
        self.milliseconds = milliseconds

    def build(self, input_shape):
        self.scale = self.add_weight(shape=(), initializer='ones', name='scale')

    def call(self, inputs):
        seconds = self.milliseconds / 1000

        @tf.custom_gradient
        def wait(x, scale):
            waited = _sleep(x, seconds)

            def gradient(upstream):
                upstream = _sleep(upstream, seconds)
                return upstream * scale, tf.reduce_sum(_sleep(upstream, seconds) * waited)

            return waited * scale, gradient

        return wait(inputs, tf.convert_to_tensor(self.scale))

    def compute_output_shape(self, input_shape):
        return input_shape


def _sleep(x, seconds):
    def sleep(value):
        time.sleep(seconds)
        return value

    return tf.ensure_shape(tf.numpy_function(sleep, [x], x.dtype), x.shape)
