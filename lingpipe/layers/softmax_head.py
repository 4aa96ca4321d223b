"""The end of a language model: from vectors to logits over the vocabulary."""

import keras

from lingpipe.layers import base_layer, tied_table


class SoftmaxHead(tied_table.TiedTable, base_layer.BaseLayer):
    """A layer norm and a product with one vector a token; the softmax itself is part of the loss.

    With `tied_to` these vectors are the table of an embedding of the same stack; see `TiedTable`.
    """

    @classmethod
    def Params(cls):
        p = super().Params()
        p.Define('vocab_size', None, 'Number of different tokens.')
        cls.define_field(p)
        p.Define('use_bias', True, 'Whether a bias for each token is added.')
        p.Define('norm_epsilon', 1e-6, 'Added to the variance in the layer norm.')
        return p

    def __init__(self, params, **kwargs):
        super().__init__(params, **kwargs)
        self.supports_masking = True
        if not isinstance(params.vocab_size, int) or params.vocab_size < 1:
            raise ValueError(f'SoftmaxHead.vocab_size is {params.vocab_size!r}; it must be an integer of at least 1. Set it.')
        self.norm = keras.layers.LayerNormalization(epsilon=params.norm_epsilon, name='norm', dtype=self.dtype_policy)

    def build(self, input_shape):
        vocab_size, model_dim = self.params.vocab_size, input_shape[-1]
        self.norm.build(input_shape)
        self.table = self.shared_table(vocab_size, model_dim)
        if self.table is None:
            initializer = keras.initializers.RandomNormal(stddev=model_dim**-0.5)
            self.table = self.add_weight(name='table', shape=(vocab_size, model_dim), initializer=initializer)
        if self.params.use_bias:
            self.bias = self.add_weight(name='bias', shape=(vocab_size,), initializer='zeros')

    def call(self, inputs):
        """Maps `[batch, length, model_dim]` to logits `[batch, length, vocab_size]` of at least float32."""
        logits = keras.ops.einsum('btd,vd->btv', self.norm(inputs), self.table)
        if self.params.use_bias:
            logits += self.bias
        return keras.ops.cast(logits, keras.backend.result_type(logits.dtype, 'float32'))

    def compute_output_shape(self, input_shape):
        return *input_shape[:-1], self.params.vocab_size
