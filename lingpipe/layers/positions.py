"""Telling a network where in the sequence a vector stands, by adding a vector for the position.

(The third way, rotary positions, turns queries and keys inside attention: see `rotary.py`.)
"""

import keras
import numpy as np

from lingpipe.layers import base_layer

_LARGEST_WAVELENGTH = 10_000.0


class _AddedPositions(base_layer.BaseLayer):
    """Adds a table of vectors, one a position, then applies the drop-out of the network's input."""

    @classmethod
    def Params(cls):
        p = super().Params()
        p.Define('input_dropout_prob', 0.0, 'Drop-out of what goes into the first block.')
        return p

    def __init__(self, params, **kwargs):
        super().__init__(params, **kwargs)
        self.supports_masking = True
        self.dropout = keras.layers.Dropout(params.input_dropout_prob, name='dropout', dtype=self.dtype_policy)

    def call(self, inputs, start=0, training=None):
        """Adds positions.

        Args:
            inputs: `[batch, length, model_dim]`.
            start: position of the first vector.
            training: whether drop-out is applied.

        Returns:
            `[batch, length, model_dim]`.
        """
        vectors = keras.ops.cast(self.vectors(start, inputs.shape[1], inputs.shape[2]), inputs.dtype)
        return self.dropout(inputs + vectors, training=training)

    def decode(self, inputs, cache, start):
        """Adds the positions from `start` on; keeps nothing."""
        return self(inputs, start=start), cache

    def compute_output_shape(self, input_shape):
        return input_shape


class NoPositions(_AddedPositions):
    """Adds nothing, for networks with rotary positions; only the drop-out of the input is left."""

    def vectors(self, start, length, model_dim):
        del start
        return keras.ops.zeros((length, model_dim))


class LearnedPositions(_AddedPositions):
    """Adds a trained vector for each position up to `max_length`."""

    @classmethod
    def Params(cls):
        p = super().Params()
        p.Define('max_length', None, 'Number of positions.')
        return p

    def build(self, input_shape):
        _, length, model_dim = input_shape
        if self.params.max_length is None or (length or 0) > self.params.max_length:
            raise ValueError(f'LearnedPositions.max_length is {self.params.max_length}, but sequences have {length} '
                             f'positions. Set it to {length} at least.')
        self.table = self.add_weight(
            name='table', shape=(self.params.max_length, model_dim),
            initializer=keras.initializers.RandomNormal(stddev=0.02))

    def vectors(self, start, length, model_dim):
        return keras.ops.slice(self.table, (start, 0), (length, model_dim))


class SinusoidalPositions(_AddedPositions):
    """Adds sin(t / 10000^(i / (d/2))) in the first half of the d channels and the cosine in the second, t from 0.

    The formula is that of arXiv 1706.03762, section 3.5, with sines and cosines side by side as in Lingvo, not interleaved.
    """

    def vectors(self, start, length, model_dim):
        num_waves = model_dim // 2
        frequencies = _LARGEST_WAVELENGTH ** (-np.arange(num_waves, dtype=np.float32) / num_waves)
        angles = keras.ops.cast(start + keras.ops.arange(length), 'float32')[:, None] * frequencies[None, :]
        return keras.ops.concatenate([keras.ops.sin(angles), keras.ops.cos(angles)], axis=-1)
