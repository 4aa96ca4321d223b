"""Vectors for tokens."""

import math

import keras

from lingpipe.layers import base_layer


class TokenEmbedding(base_layer.BaseLayer):
    """Looks up a vector for every token; its table may also be that of a softmax (see `SoftmaxHead.tied_to`).

    With `scale_sqrt_depth` the table starts with standard deviation 1 / sqrt(model_dim) and vectors are multiplied by
    sqrt(model_dim), so that one table gives inputs of variance 1 and logits of variance 1 (arXiv 1706.03762, section 3.4).
    """

    @classmethod
    def Params(cls):
        p = super().Params()
        p.Define('vocab_size', None, 'Number of different tokens.')
        p.Define('model_dim', None, 'Size of a vector.')
        p.Define('scale_sqrt_depth', True, 'Whether vectors are multiplied by sqrt(model_dim).')
        p.Define('padding_id', None, 'Token that later layers are not to attend to, as a Keras mask; None: there is none.')
        return p

    def __init__(self, params, **kwargs):
        super().__init__(params, **kwargs)
        for field in ('vocab_size', 'model_dim'):
            _check_positive(field, getattr(params, field))

    def build(self, input_shape):
        p = self.params
        stddev = 1 / math.sqrt(p.model_dim) if p.scale_sqrt_depth else 1.0
        self.table = self.add_weight(
            name='table', shape=(p.vocab_size, p.model_dim), initializer=keras.initializers.RandomNormal(stddev=stddev))

    def call(self, inputs):
        """Maps tokens, integers `[batch, length]`, to vectors `[batch, length, model_dim]`."""
        tokens = keras.ops.cast(inputs, 'int32')  # a Sequential model hands over floats
        vectors = keras.ops.take(self.table, tokens, axis=0)
        if self.params.scale_sqrt_depth:
            vectors *= math.sqrt(self.params.model_dim)
        return keras.ops.cast(vectors, self.compute_dtype)

    def compute_mask(self, inputs, previous=None):
        if self.params.padding_id is None:
            return previous
        return keras.ops.not_equal(inputs, self.params.padding_id)

    def compute_output_shape(self, input_shape):
        return *input_shape, self.params.model_dim


def _check_positive(field, value):
    if not isinstance(value, int) or value < 1:
        raise ValueError(f'TokenEmbedding.{field} is {value!r}; it must be an integer of at least 1. Set it.')
