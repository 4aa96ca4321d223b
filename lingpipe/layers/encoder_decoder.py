"""The layers of an encoder and a decoder that follow each other in one stack, so that a pipeline can cut anywhere.

Each takes and returns the same nest, of which it changes one part and passes the others on::

                     source_embedding  encoder blocks  target_embedding  decoder blocks    head
    source            ids ─> vectors      changed         normalised       read (cross)
    source_mask            made            read             passed            read
    target                 ids             ids           ids ─> vectors      changed      ─> logits

Targets stay integers up to the decoder: partitions of the encoder hand on `length` numbers of a target, not
`length * model_dim`. Padding comes after a target's tokens, where no position before it looks, so it needs no mask.
"""

import keras

from lingpipe.layers import cross_attention, embedding, softmax_head, tied_table, transformer_block
from lingpipe.layers import positions as position_layers


class _SequenceEmbedding(embedding.TokenEmbedding):
    """What both embeddings do: vectors of tokens and of their positions, and the drop-out of both."""

    @classmethod
    def Params(cls):
        p = super().Params()
        p.Define('positions', position_layers.SinusoidalPositions.Params(), 'What tells a vector where it stands.')
        return p

    def __init__(self, params, **kwargs):
        super().__init__(params, **kwargs)
        self.positions = params.positions.Copy().Set(name='positions', dtype_policy=self.dtype_policy.name).Instantiate()

    def _embedded(self, tokens, training):
        return self.positions(super().call(tokens), training=training)

    def _build_positions(self, shape):
        self.positions.build((*shape, self.params.model_dim))

    def compute_mask(self, inputs, previous=None):
        return None  # masks are parts of the nest


class SourceEmbedding(_SequenceEmbedding):
    """Takes `{'source', 'target'}`, tokens; makes vectors of the source, and the mask that hides its padding."""

    @classmethod
    def Params(cls):
        return super().Params().Set(padding_id=0)

    def build(self, input_shape):
        super().build(input_shape['source'])
        self._build_positions(input_shape['source'])

    def call(self, inputs, training=None):
        """Returns the nest with vectors `[batch, source_length, model_dim]` as source and a boolean `source_mask`."""
        tokens = keras.ops.cast(inputs['source'], 'int32')
        mask = keras.ops.not_equal(tokens, self.params.padding_id)
        return {**inputs, 'source': self._embedded(tokens, training), 'source_mask': mask}

    def compute_output_shape(self, input_shape):
        source = input_shape['source']
        return {**input_shape, 'source': (*source, self.params.model_dim), 'source_mask': source}


class EncoderBlock(transformer_block.TransformerBlock):
    """A Transformer block of the source."""

    @classmethod
    def Params(cls):
        p = super().Params()
        p.attention.is_causal = False
        return p

    def build(self, input_shape):
        super().build(input_shape['source'])

    def call(self, inputs, training=None):
        """Returns the nest with another source."""
        return {**inputs, 'source': super().call(inputs['source'], mask=inputs['source_mask'], training=training)}


class TargetEmbedding(tied_table.TiedTable, _SequenceEmbedding):
    """Ends the encoder by a layer norm of the source, and begins the decoder with vectors of the target."""

    @classmethod
    def Params(cls):
        p = super().Params()
        cls.define_field(p)
        p.Define('norm_epsilon', 1e-6, 'Added to the variance in the layer norm.')
        return p

    def __init__(self, params, **kwargs):
        super().__init__(params, **kwargs)
        self.source_norm = keras.layers.LayerNormalization(
            epsilon=params.norm_epsilon, name='source_norm', dtype=self.dtype_policy)

    def build(self, input_shape):
        self.source_norm.build(input_shape['source'])
        self._build_positions(input_shape['target'])
        shared = self.shared_table(self.params.vocab_size, self.params.model_dim)
        if shared is None:
            super().build(input_shape['target'])
        else:
            self.table = shared

    def call(self, inputs, training=None):
        """Returns the nest with a normalised source and vectors `[batch, target_length, model_dim]` as target."""
        tokens = keras.ops.cast(inputs['target'], 'int32')
        return {**inputs, 'source': self.source_norm(inputs['source']), 'target': self._embedded(tokens, training)}

    def compute_output_shape(self, input_shape):
        return {**input_shape, 'target': (*input_shape['target'], self.params.model_dim)}


class DecoderBlock(transformer_block.TransformerBlock):
    """Causal self-attention of the target, attention to the source, and a feed-forward network, each behind a layer norm."""

    @classmethod
    def Params(cls):
        p = super().Params()
        p.Define('cross_attention', cross_attention.CrossAttention.Params(), 'The attention to the source.')
        return p

    def __init__(self, params, **kwargs):
        super().__init__(params, **kwargs)
        self.cross_attention = self._child(params.cross_attention, 'cross_attention')
        self.cross_attention_norm = self._norm('cross_attention_norm')
        self.cross_attention_dropout = self._dropout('cross_attention_dropout')

    def build(self, input_shape):
        super().build(input_shape['target'])
        self.cross_attention_norm.build(input_shape['target'])
        self.cross_attention.build(input_shape['target'])

    def call(self, inputs, training=None):
        """Returns the nest with another target."""
        x = inputs['target']
        attended = self.attention(self.attention_norm(x), training=training)
        x += self.attention_dropout(attended, training=training)
        attended = self.cross_attention(
            self.cross_attention_norm(x), source=inputs['source'], source_mask=inputs['source_mask'], training=training)
        x += self.cross_attention_dropout(attended, training=training)
        return {**inputs, 'target': self._transform(x, training)}


class TranslationHead(softmax_head.SoftmaxHead):
    """Logits of the target's tokens, which may be kept within bounds (GPipe, arXiv 1811.06965, section 5)."""

    @classmethod
    def Params(cls):
        p = super().Params()
        p.Define('logits_abs_max', None, 'Largest magnitude of a logit; None: any.')
        return p

    def build(self, input_shape):
        super().build(input_shape['target'])

    def call(self, inputs):
        """Returns logits `[batch, target_length, vocab_size]`."""
        logits, limit = super().call(inputs['target']), self.params.logits_abs_max
        return logits if limit is None else keras.ops.clip(logits, -limit, limit)

    def compute_output_shape(self, input_shape):
        return super().compute_output_shape(input_shape['target'])
