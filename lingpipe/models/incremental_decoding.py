"""The forward pass of a stack of layers a few positions at a time, with what earlier positions left behind kept."""

import keras
import tensorflow as tf

from lingpipe.pipeline import variable_values


class IncrementalDecoder:
    """Runs positions of sequences through the stages of a pipeline, each of which keeps its cache on its own device.

        tokens ─> stage 0 (device 0) ─> stage 1 (device 1) ─> logits
                    │  ^                   │  ^
                    v  │                   v  │
                  cache 0                cache 1        keys and values of every attention, [batch, length, heads, h]

    A layer that looks at other positions, or needs to know its own, has a method `decode(inputs, cache, start) -> outputs,
    cache`, and `initial_cache(batch_size, length)` where it keeps anything. Layers without `decode` are called on the new
    positions alone, so they must map every position by itself, as dense layers and layer norms do.

    Caches are variables, since a compiled function may hand its results out on another device than it made them on.

    Args:
        stages: list of the `Stage`s of a built `GPipeLayer`.
        batch_size: number of sequences.
        length: largest number of positions.
        read: function that gives the value to use for a Keras variable, such as its moving average.

    Attributes:
        caches: list with a list of nests of `tf.Variable`s for each stage.
    """

    def __init__(self, stages, batch_size, length, read=variable_values.read_variable):
        self._stages, self._read = stages, read
        self.caches = []
        for stage in stages:
            with tf.device(stage.device):
                self.caches.append([_make_cache(layer, batch_size, length) for layer in stage.layers])

    def forward(self, tokens, start):
        """Computes the outputs of the next positions in evaluation mode.

        Args:
            tokens: int32 `[batch, n]`, at positions `start` to `start + n - 1`; what was there or later counts no more.
            start: int32 scalar tensor.

        Returns:
            Outputs `[batch, n, ...]`, on the device of the last stage.
        """
        x = tokens
        all_values = variable_values.read_values(self._stages, read=self._read)
        for stage, values, caches in zip(self._stages, all_values, self.caches):
            variables = stage.variables()
            mapping = list(zip(variables.weights + variables.state, values.weights + values.state))
            with tf.device(stage.device), keras.StatelessScope(state_mapping=mapping, initialize_variables=False):
                x = _decode_layers(stage.layers, x, caches, start)
        return x


def _make_cache(layer, batch_size, length):
    if not hasattr(layer, 'initial_cache'):
        return ()
    return tf.nest.map_structure(lambda zeros: tf.Variable(zeros, trainable=False), layer.initial_cache(batch_size, length))


def _decode_layers(layers, x, caches, start):
    for layer, cache in zip(layers, caches):
        if not hasattr(layer, 'decode'):
            x = layer(x, training=False)
            continue
        x, new_cache = layer.decode(x, tf.nest.map_structure(lambda variable: variable.read_value(), cache), start)
        tf.nest.map_structure(lambda variable, value: variable.assign(value), cache, new_cache)
    return x
