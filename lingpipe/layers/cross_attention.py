"""Multi-head attention of one sequence to another."""

import keras

from lingpipe.layers import attention


class CrossAttention(attention.MultiHeadAttention):
    """Attention of a target, which has the queries, to a source, which has keys and values (arXiv 1706.03762, section 3.2.3).

        target ─> dense ───> queries ────────────┐
        source ─> dense ─┬─> keys ───────────────┤
                         └─> values ─────────────┴─> softmax(q k / sqrt(h)) v ─> dense ─>
    """

    @classmethod
    def Params(cls):
        return super().Params().Delete('is_causal', 'use_rotary_positions')

    def build(self, input_shape):
        """Creates the weights; `input_shape` is that of the target, whose vectors are as large as the source's."""
        p, model_dim = self.params, input_shape[-1]
        self.head_dim = self._head_dim(model_dim)
        inner_dim = p.num_heads * self.head_dim
        self.query_projection = self._dense('query_projection', inner_dim, 1.0)
        self.key_value_projection = self._dense('key_value_projection', 2 * inner_dim, 1.0)
        self.output_projection = self._dense('output_projection', model_dim, p.output_scale)
        self.dropout = keras.layers.Dropout(p.atten_dropout_prob, name='dropout', dtype=self.dtype_policy)
        self.query_projection.build(input_shape)
        self.key_value_projection.build(input_shape)
        self.output_projection.build((*input_shape[:-1], inner_dim))

    def call(self, inputs, source=None, source_mask=None, training=None):
        """Attends.

        Args:
            inputs: `[batch, length, model_dim]`, the target.
            source: `[batch, source_length, model_dim]`.
            source_mask: boolean `[batch, source_length]`, False where nobody is to attend to; None: attend everywhere.
            training: whether drop-out is applied.

        Returns:
            `[batch, length, model_dim]`.
        """
        queries = self._heads(self.query_projection(inputs))
        keys, values = map(self._heads, keras.ops.split(self.key_value_projection(source), 2, axis=-1))
        allowed = None if source_mask is None else source_mask[:, None, None, :]
        return self.combine(self.attend(queries, keys, values, allowed, training=training))

    def _heads(self, vectors):
        return keras.ops.reshape(vectors, (-1, vectors.shape[1], self.params.num_heads, self.head_dim))
