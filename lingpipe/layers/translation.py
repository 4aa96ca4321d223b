"""Transformers that translate. A pipeline can cut the models between any two layers.

Encoder and decoder form one stack. Each layer takes a dictionary of tensors, called the nest. All layers but the head
return a changed nest::

                     source_embedding  encoder blocks  target_embedding  decoder blocks    head
    source            ids ─> vectors      changed         normalised       read (cross)
    source_mask            made            read             passed            read
    target                 ids             ids           ids ─> vectors      changed      ─> logits

Targets stay integers up to the decoder, to keep transfers small. Targets need no padding mask, because padding comes
last and tokens attend only to earlier positions.
"""

from typing import Any

import keras
import tensorflow as tf

from lingpipe import hyperparams
from lingpipe.layers import attention, base_layer, embeddings, transformer


class _SequenceEmbedding(embeddings.TokenEmbedding):
    """The base class of the source embedding and the target embedding."""

    @classmethod
    def Params(cls) -> base_layer.LayerParams:
        p = super().Params()
        p.Define('positions', embeddings.SinusoidalPositions.Params(), 'Layer that adds positions to the vectors.')
        return p

    def __init__(self, params: hyperparams.Params, **kwargs: Any) -> None:
        super().__init__(params, **kwargs)
        positions = params.positions.Copy().Set(name='positions', dtype_policy=self.dtype_policy.name)
        self.positions = positions.Instantiate()

    def _embedded(self, tokens, training):
        return self.positions(super().call(tokens), training=training)

    def _build_positions(self, shape):
        self.positions.build((*shape, self.params.model_dim))

    def compute_mask(self, inputs: Any, previous: Any = None) -> None:
        return None  # masks are parts of the nest


class SourceEmbedding(_SequenceEmbedding):
    """The layer that embeds the source tokens, and computes their padding mask."""

    @classmethod
    def Params(cls) -> base_layer.LayerParams:
        return super().Params().Set(padding_id=0)

    def build(self, input_shape: Any) -> None:
        super().build(input_shape['source'])
        self._build_positions(input_shape['source'])

    def call(self, inputs: dict[str, tf.Tensor], training: bool | None = None) -> dict[str, tf.Tensor]:
        """Replace source tokens by vectors `[batch, source_length, model_dim]`. Add the boolean `source_mask`."""
        tokens = keras.ops.cast(inputs['source'], 'int32')
        mask = keras.ops.not_equal(tokens, self.params.padding_id)
        return {**inputs, 'source': self._embedded(tokens, training), 'source_mask': mask}


class EncoderBlock(transformer.TransformerBlock):
    """A Transformer block of the source."""

    @classmethod
    def Params(cls) -> base_layer.LayerParams:
        p = super().Params()
        p.attention.is_causal = False
        return p

    def build(self, input_shape: Any) -> None:
        super().build(input_shape['source'])

    def call(self, inputs: dict[str, tf.Tensor],  # type: ignore[override]  # the mask is a part of the nest
             training: bool | None = None) -> dict[str, tf.Tensor]:
        """Return `inputs` with the block's output as 'source', `[batch, source_length, model_dim]`."""
        return {**inputs, 'source': super().call(inputs['source'], mask=inputs['source_mask'], training=training)}


class TargetEmbedding(embeddings.TiedTable, _SequenceEmbedding):
    """The layer between encoder and decoder. It normalises the source and embeds the target."""

    def __init__(self, params: hyperparams.Params, **kwargs: Any) -> None:
        super().__init__(params, **kwargs)
        self.source_norm = keras.layers.LayerNormalization(
            epsilon=base_layer.NORM_EPSILON, name='source_norm', dtype=self.dtype_policy)

    def build(self, input_shape: Any) -> None:
        self.source_norm.build(input_shape['source'])
        self._build_positions(input_shape['target'])
        self.table = self.find_table(self.params.vocab_size, self.params.model_dim)

    def call(self, inputs: dict[str, tf.Tensor], training: bool | None = None) -> dict[str, tf.Tensor]:
        """Normalise the source. Replace target tokens by vectors `[batch, target_length, model_dim]`."""
        tokens = keras.ops.cast(inputs['target'], 'int32')
        return {**inputs, 'source': self.source_norm(inputs['source']), 'target': self._embedded(tokens, training)}

    def decode(self, tokens: tf.Tensor, start: int | tf.Tensor) -> tf.Tensor:
        """Return vectors `[batch, n, model_dim]` of tokens `[batch, n]` at positions from `start`."""
        return self.positions(embeddings.TokenEmbedding.call(self, tokens), start=start)


class DecoderBlock(transformer.TransformerBlock):
    """A 'pre-LN' decoder block: causal self-attention, attention to the source, then a feed-forward network."""

    @classmethod
    def Params(cls) -> base_layer.LayerParams:
        p = super().Params()
        p.Define('cross_attention', attention.CrossAttention.Params(), 'The attention to the source.')
        return p

    def __init__(self, params: hyperparams.Params, **kwargs: Any) -> None:
        super().__init__(params, **kwargs)
        self.cross_attention = self._child(params.cross_attention, 'cross_attention')
        self.cross_attention_norm = self._norm('cross_attention_norm')
        self.cross_attention_dropout = self._dropout('cross_attention_dropout')

    def build(self, input_shape: Any) -> None:
        super().build(input_shape['target'])
        self.cross_attention_norm.build(input_shape['target'])
        self.cross_attention.build(input_shape['target'])

    def call(self, inputs: dict[str, tf.Tensor],  # type: ignore[override]  # the mask is a part of the nest
             training: bool | None = None) -> dict[str, tf.Tensor]:
        """Return `inputs` with the block's output as 'target', `[batch, target_length, model_dim]`."""
        x = inputs['target']
        attended = self.attention(self.attention_norm(x), training=training)
        x += self.attention_dropout(attended, training=training)
        attended = self.cross_attention(
            self.cross_attention_norm(x), source=inputs['source'], source_mask=inputs['source_mask'], training=training)
        x += self.cross_attention_dropout(attended, training=training)
        return {**inputs, 'target': self._transform(x, training)}

    def decode(self, inputs: tf.Tensor, cache: tuple[tf.Tensor, ...],  # type: ignore[override]  # other arguments
               source: tuple[tf.Tensor, ...], start: int | tf.Tensor) -> tuple[tf.Tensor, tuple[tf.Tensor, ...]]:
        """Compute the block's outputs at the next positions of a target; see `MultiHeadAttention.decode`.

        Args:
            inputs: `[batch, n, model_dim]`, of positions `start` to `start + n - 1`.
            cache: keys and values of the target's positions before `start`.
            source: keys and values from `cross_attention.project_source`, then the mask `[batch, source_length]`.

        Returns:
            Outputs `[batch, n, model_dim]`, and the cache with the new keys and values.
        """
        *keys_and_values, source_mask = source
        attended, cache = self.attention.decode(self.attention_norm(inputs), cache, start)
        x = inputs + attended
        x += self.cross_attention.attend_to(self.cross_attention_norm(x), tuple(keys_and_values), source_mask)
        return self._transform(x, training=False), cache


class TranslationHead(embeddings.SoftmaxHead):
    """The layer that computes logits of target tokens, clipped on request (GPipe, arXiv 1811.06965, section 5)."""

    @classmethod
    def Params(cls) -> base_layer.LayerParams:
        p = super().Params()
        p.Define('logits_abs_max', None, 'Largest magnitude of a logit; None: any.')
        return p

    def build(self, input_shape: Any) -> None:
        super().build(input_shape['target'])

    def call(self, inputs: dict[str, tf.Tensor]) -> tf.Tensor:
        """Return logits `[batch, target_length, vocab_size]`."""
        logits, limit = super().call(inputs['target']), self.params.logits_abs_max
        return logits if limit is None else keras.ops.clip(logits, -limit, limit)


def transformer_nmt_layers(
        num_layers: int, vocab_size: int, model_dim: int, hidden_dim: int, num_heads: int,
        dim_per_head: int | None = None, is_tied: bool = False, logits_abs_max: float | None = None,
        activation: str = 'relu', padding_id: int = 0, input_dropout_prob: float = 0.0,
        residual_dropout_prob: float = 0.0, atten_dropout_prob: float = 0.0,
        relu_dropout_prob: float = 0.0) -> list[base_layer.LayerParams]:
    """Return the Params of a translation model's layers, from tokens to logits.

        source_embedding, encoder_0, ..., encoder_(L-1), target_embedding, decoder_0, ..., decoder_(L-1), softmax

    The first layer takes tokens as `{'source': [batch, source_length], 'target': [batch, target_length]}`. At
    each position, the logits predict the token that follows the target token.

    The network has L (12 d h + 9 h + 4 d f + 2 f + 15 d) + 4 d + T V d + V parameters. h is the size of all heads
    together, by default d. T is the number of embedding tables: 1 if `is_tied`, else 2. A is `num_heads`. For d, f and
    `input_dropout_prob`, see `transformer.transformer_lm_layers`.

    The network belongs to the family T(L, f, A) of GPipe (arXiv 1811.06965, section 5). For the parameter counts of the
    paper, set `dim_per_head=64`. As in the paper, logits may be clipped. In each feed-forward network, the initial
    weights of the second dense layer are scaled by 1 / L.

    Args:
        num_layers: L, the number of encoder blocks. There are as many decoder blocks.
        vocab_size: V, the number of different tokens of both languages together.
        dim_per_head: size of a head; None: d / A.
        is_tied: whether the softmax shares the table of source and target.
        logits_abs_max: largest magnitude of a logit; None: any.
    """
    encoder = EncoderBlock.Params()
    decoder = DecoderBlock.Params()
    heads = {'num_heads': num_heads, 'dim_per_head': dim_per_head, 'atten_dropout_prob': atten_dropout_prob}
    decoder.cross_attention.Set(**heads)
    for block in (encoder, decoder):
        block.residual_dropout_prob = residual_dropout_prob
        block.attention.Set(**heads)
        block.feed_forward.Set(hidden_dim=hidden_dim, activation=activation, relu_dropout_prob=relu_dropout_prob,
                               output_scale=1 / num_layers)
    positions = embeddings.SinusoidalPositions.Params().Set(input_dropout_prob=input_dropout_prob)
    tables = {'vocab_size': vocab_size, 'model_dim': model_dim, 'positions': positions}
    return [
        SourceEmbedding.Params().Set(name='source_embedding', padding_id=padding_id, **tables),
        *[encoder.Copy().Set(name=f'encoder_{index}') for index in range(num_layers)],
        TargetEmbedding.Params().Set(name='target_embedding', tied_to='source_embedding', **tables),
        *[decoder.Copy().Set(name=f'decoder_{index}') for index in range(num_layers)],
        TranslationHead.Params().Set(
            name='softmax', vocab_size=vocab_size, tied_to='source_embedding' if is_tied else None,
            logits_abs_max=logits_abs_max)]
