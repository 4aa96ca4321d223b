"""One block of a Transformer."""

import keras

from lingpipe.layers import attention, base_layer, feed_forward


class TransformerBlock(base_layer.BaseLayer):
    """Self-attention and a feed-forward network, each after a layer norm ('pre-LN') and beside a skip.

        x ─┬─> norm ─> attention ─> drop-out ─> + ─┬─> norm ─> feed-forward ─> drop-out ─> + ─>
           └────────────────────────────────────┘  └───────────────────────────────────────┘

    With the norm inside the branch gradients are well-behaved at the start for any depth (arXiv 2002.04745, section 3).
    """

    @classmethod
    def Params(cls):
        p = super().Params()
        p.Define('attention', attention.MultiHeadAttention.Params(), 'The attention.')
        p.Define('feed_forward', feed_forward.FeedForward.Params(), 'The feed-forward network.')
        p.Define('residual_dropout_prob', 0.0, 'Drop-out of both branches before they are added.')
        p.Define('norm_epsilon', 1e-6, 'Added to the variance in layer norms.')
        return p

    def __init__(self, params, **kwargs):
        super().__init__(params, **kwargs)
        self.supports_masking = True
        self.attention = self._child(params.attention, 'attention')
        self.feed_forward = self._child(params.feed_forward, 'feed_forward')
        self.attention_norm = self._norm('attention_norm')
        self.feed_forward_norm = self._norm('feed_forward_norm')
        self.attention_dropout = self._dropout('attention_dropout')
        self.feed_forward_dropout = self._dropout('feed_forward_dropout')

    def _child(self, params, name):
        return params.Copy().Set(name=name, dtype_policy=self.dtype_policy.name).Instantiate()

    def _norm(self, name):
        return keras.layers.LayerNormalization(epsilon=self.params.norm_epsilon, name=name, dtype=self.dtype_policy)

    def _dropout(self, name):
        return keras.layers.Dropout(self.params.residual_dropout_prob, name=name, dtype=self.dtype_policy)

    def build(self, input_shape):
        for layer in (self.attention_norm, self.attention, self.feed_forward_norm, self.feed_forward):
            layer.build(input_shape)

    def call(self, inputs, mask=None, training=None):
        """Maps `[batch, length, model_dim]` to the same shape; see `MultiHeadAttention.call` for `mask`."""
        attended = self.attention(self.attention_norm(inputs), mask=mask, training=training)
        return self._transform(inputs + self.attention_dropout(attended, training=training), training)

    def _transform(self, x, training):
        transformed = self.feed_forward(self.feed_forward_norm(x), training=training)
        return x + self.feed_forward_dropout(transformed, training=training)

    def initial_cache(self, batch_size, length):
        """Returns the empty cache of `decode`; see `MultiHeadAttention.initial_cache`."""
        return self.attention.initial_cache(batch_size, length)

    def decode(self, inputs, cache, start):
        """Maps the next vectors of a sequence, as `MultiHeadAttention.decode` does."""
        attended, cache = self.attention.decode(self.attention_norm(inputs), cache, start)
        return self._transform(inputs + attended, training=False), cache

    def compute_output_shape(self, input_shape):
        return input_shape
