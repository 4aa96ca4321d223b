"""A pre-LN decoder stack of stock Keras layers, the model that other pipeline libraries are measured on too."""

import keras

from lingpipe.layers import keras_params


class DecoderBlock(keras.layers.Layer):
    """Causal self-attention and a feed-forward network, each after a layer norm and beside a skip.

    ::

        x ─┬─> norm ─> attention ─> + ─┬─> norm ─> dense ─> GELU ─> dense ─> + ─>
           └────────────────────────┘  └───────────────────────────────────┘

    Args:
        num_heads: number of attention heads.
        hidden_size: width of the feed-forward network.
    """

    def __init__(self, num_heads, hidden_size, **kwargs):
        super().__init__(**kwargs)
        self._num_heads, self._hidden_size = num_heads, hidden_size

    def build(self, input_shape):
        width, dtype = input_shape[-1], self.dtype_policy
        self.norms = [keras.layers.LayerNormalization(name=f'norm_{index}', dtype=dtype) for index in range(2)]
        self.attention = keras.layers.MultiHeadAttention(
            self._num_heads, width // self._num_heads, name='attention', dtype=dtype)
        self.hidden = keras.layers.Dense(self._hidden_size, activation='gelu', name='hidden', dtype=dtype)
        self.output_projection = keras.layers.Dense(width, name='output_projection', dtype=dtype)
        for norm in self.norms:
            norm.build(input_shape)
        self.attention.build(input_shape, input_shape)
        self.hidden.build(input_shape)
        self.output_projection.build((*input_shape[:-1], self._hidden_size))

    def call(self, inputs):
        normed = self.norms[0](inputs)
        inputs += self.attention(normed, normed, use_causal_mask=True)
        return inputs + self.output_projection(self.hidden(self.norms[1](inputs)))


def decoder_layers(num_blocks, width, num_heads, vocabulary_size):
    """Return layer params: embedding, blocks, and the projection onto the vocabulary.

    Args:
        num_blocks: number of decoder blocks.
        width: size of the vectors between the blocks; the feed-forward network is four times as wide.
        num_heads: number of attention heads.
        vocabulary_size: number of tokens.
    """
    blocks = [keras_params.KerasParams(DecoderBlock, num_heads=num_heads, hidden_size=4 * width, name=f'block_{index}')
              for index in range(num_blocks)]
    return [keras_params.KerasParams(
        keras.layers.Embedding, input_dim=vocabulary_size, output_dim=width, name='embedding'),
            *blocks, keras_params.KerasParams(keras.layers.Dense, units=vocabulary_size, name='vocabulary')]
