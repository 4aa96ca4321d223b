"""The position-wise feed-forward network of a Transformer."""

import keras

from lingpipe.layers import base_layer, initialization


class FeedForward(base_layer.BaseLayer):
    """Two dense layers with an activation between them, optionally gated.

        plain:  activation(x W) V                  gated:  (activation(x W) * x U) V

    With 'gelu' the gated form is GEGLU, with 'silu' SwiGLU (arXiv 2002.05202, section 2).
    """

    @classmethod
    def Params(cls):
        p = super().Params()
        p.Define('hidden_dim', None, 'Size of the hidden layer.')
        p.Define('activation', 'gelu', "Name of a Keras activation, such as 'gelu', 'relu' or 'silu'.")
        p.Define('is_gated', False, 'Whether a second product gates the hidden layer.')
        p.Define('use_bias', True, 'Whether the dense layers have biases.')
        p.Define('relu_dropout_prob', 0.0, 'Drop-out of the hidden layer.')
        p.Define('output_scale', 1.0, 'Factor of the initial weights of the last dense layer.')
        return p

    def __init__(self, params, **kwargs):
        super().__init__(params, **kwargs)
        if not isinstance(params.hidden_dim, int) or params.hidden_dim < 1:
            raise ValueError(f'FeedForward.hidden_dim is {params.hidden_dim!r}; it must be an integer of at least 1. Set it, '
                             'usually to four times the size of the vectors.')

    def build(self, input_shape):
        p = self.params
        self.activation = keras.activations.get(p.activation)
        self.hidden = self._dense('hidden', p.hidden_dim * (1 + p.is_gated), 1.0)
        self.output_projection = self._dense('output_projection', input_shape[-1], p.output_scale)
        self.dropout = keras.layers.Dropout(p.relu_dropout_prob, name='dropout', dtype=self.dtype_policy)
        self.hidden.build(input_shape)
        self.output_projection.build((*input_shape[:-1], p.hidden_dim))

    def _dense(self, name, units, scale):
        return keras.layers.Dense(
            units, use_bias=self.params.use_bias, kernel_initializer=initialization.kernel_initializer(scale), name=name,
            dtype=self.dtype_policy)

    def call(self, inputs, training=None):
        """Maps `[batch, length, model_dim]` to the same shape."""
        hidden = self.hidden(inputs)
        if self.params.is_gated:
            hidden, gate = keras.ops.split(hidden, 2, axis=-1)
            hidden = self.activation(hidden) * gate
        else:
            hidden = self.activation(hidden)
        return self.output_projection(self.dropout(hidden, training=training))

    def compute_output_shape(self, input_shape):
        return input_shape
