"""Transformer language models. A pipeline can cut the models between any two layers."""

from typing import Any

import keras
import tensorflow as tf

from lingpipe import hyperparams, wording
from lingpipe.layers import attention, base_layer, embeddings

POSITIONS = ('learned', 'none', 'rotary', 'sinusoidal')


class FeedForward(base_layer.BaseLayer):
    """Two dense layers with an activation between them: activation(x W) V."""

    @classmethod
    def Params(cls) -> base_layer.LayerParams:
        p = super().Params()
        p.Define('hidden_dim', None, 'Size of the hidden layer.')
        p.Define('activation', 'gelu', "Name of a Keras activation, such as 'gelu', 'relu' or 'silu'.")
        p.Define('relu_dropout_prob', 0.0, 'Dropout of the hidden layer.')
        p.Define('output_scale', 1.0, 'Factor of the initial weights of the last dense layer.')
        return p

    def __init__(self, params: hyperparams.Params, **kwargs: Any) -> None:
        super().__init__(params, **kwargs)
        base_layer.require_size(params, 'hidden_dim')

    def build(self, input_shape: Any) -> None:
        p = self.params
        self.activation = keras.activations.get(p.activation)
        self.hidden = attention.dense(self, 'hidden', p.hidden_dim)
        self.output_projection = attention.dense(self, 'output_projection', input_shape[-1], p.output_scale)
        self.dropout = keras.layers.Dropout(p.relu_dropout_prob, name='dropout', dtype=self.dtype_policy)
        self.hidden.build(input_shape)
        self.output_projection.build((*input_shape[:-1], p.hidden_dim))

    def call(self, inputs: tf.Tensor, training: bool | None = None) -> tf.Tensor:
        """Map `[batch, length, model_dim]` to the same shape."""
        hidden = self.activation(self.hidden(inputs))
        return self.output_projection(self.dropout(hidden, training=training))


class TransformerBlock(base_layer.BaseLayer):
    """A 'pre-LN' Transformer block: self-attention, then a feed-forward network.

        x ─┬─> norm ─> attention ─> dropout ──> + ─┬─> norm ─> feed-forward ─> dropout ──> + ─>
           └────────────────────────────────────┘  └───────────────────────────────────────┘

    With the norm inside the branch, initial gradients are well-behaved at any depth (arXiv 2002.04745, section 3).
    """

    @classmethod
    def Params(cls) -> base_layer.LayerParams:
        p = super().Params()
        p.Define('attention', attention.MultiHeadAttention.Params(), 'The attention.')
        p.Define('feed_forward', FeedForward.Params(), 'The feed-forward network.')
        p.Define('residual_dropout_prob', 0.0, 'Dropout of both branches before they are added.')
        return p

    def __init__(self, params: hyperparams.Params, **kwargs: Any) -> None:
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
        return keras.layers.LayerNormalization(epsilon=base_layer.NORM_EPSILON, name=name, dtype=self.dtype_policy)

    def _dropout(self, name):
        return keras.layers.Dropout(self.params.residual_dropout_prob, name=name, dtype=self.dtype_policy)

    def build(self, input_shape: Any) -> None:
        for layer in (self.attention_norm, self.attention, self.feed_forward_norm, self.feed_forward):
            layer.build(input_shape)

    def call(self, inputs: Any, mask: tf.Tensor | None = None, training: bool | None = None) -> tf.Tensor:
        """Map `[batch, length, model_dim]` to the same shape; see `MultiHeadAttention.call` for `mask`."""
        attended = self.attention(self.attention_norm(inputs), mask=mask, training=training)
        return self._transform(inputs + self.attention_dropout(attended, training=training), training)

    def _transform(self, x, training):
        transformed = self.feed_forward(self.feed_forward_norm(x), training=training)
        return x + self.feed_forward_dropout(transformed, training=training)

    def initial_cache(self, batch_size: int, length: int) -> tuple[tf.Tensor, ...]:
        """Return an empty cache for `decode`; see `MultiHeadAttention.initial_cache`."""
        return self.attention.initial_cache(batch_size, length)

    def decode(self, inputs: tf.Tensor, cache: tuple[tf.Tensor, ...],
               start: int | tf.Tensor) -> tuple[tf.Tensor, tuple[tf.Tensor, ...]]:
        """Map the next vectors of a sequence, as `MultiHeadAttention.decode` does."""
        attended, cache = self.attention.decode(self.attention_norm(inputs), cache, start)
        return self._transform(inputs + attended, training=False), cache


def transformer_lm_layers(
        num_layers: int, vocab_size: int, model_dim: int, hidden_dim: int, num_heads: int,
        positions: str = 'sinusoidal', max_length: int | None = None, is_tied: bool = False, activation: str = 'gelu',
        input_dropout_prob: float = 0.0, residual_dropout_prob: float = 0.0, atten_dropout_prob: float = 0.0,
        relu_dropout_prob: float = 0.0) -> list[base_layer.LayerParams]:
    """Return the Params of a decoder-only Transformer's layers, from tokens `[batch, length]` to logits.

        embedding, positions, block_0, ..., block_(L-1), softmax

    The defaults give GPipe's Transformer-L (arXiv 1811.06965, table 1). The network has
    L (4 d^2 + 2 d f + 9 d + f) + 2 V d + V + 2 d parameters. L is `num_layers`. V is `vocab_size`. d is `model_dim`,
    the size of the vectors between blocks. f is `hidden_dim`, the size of a feed-forward network's hidden layer.

    Args:
        is_tied: whether the softmax shares the table of the embedding.
        input_dropout_prob: dropout of the sum of embedding and positions.

    Raises:
        ValueError: `positions` is not in POSITIONS.
    """
    branch_scale = (2 * num_layers) ** -0.5  # the sum of all branches starts as large as the input (GPT-2, section 2.3)
    block = TransformerBlock.Params().Set(residual_dropout_prob=residual_dropout_prob)
    block.attention.Set(
        num_heads=num_heads, use_rotary_positions=positions == 'rotary', atten_dropout_prob=atten_dropout_prob,
        output_scale=branch_scale)
    block.feed_forward.Set(
        hidden_dim=hidden_dim, activation=activation, relu_dropout_prob=relu_dropout_prob, output_scale=branch_scale)
    return [
        embeddings.TokenEmbedding.Params().Set(name='embedding', vocab_size=vocab_size, model_dim=model_dim),
        _positions_params(positions, max_length).Set(name='positions', input_dropout_prob=input_dropout_prob),
        *[block.Copy().Set(name=f'block_{index}') for index in range(num_layers)],
        embeddings.SoftmaxHead.Params().Set(
            name='softmax', vocab_size=vocab_size, tied_to='embedding' if is_tied else None)]


def _positions_params(kind, max_length):
    if kind == 'learned':
        return embeddings.LearnedPositions.Params().Set(max_length=max_length)
    if kind == 'sinusoidal':
        return embeddings.SinusoidalPositions.Params()
    if kind in POSITIONS:
        return embeddings.NoPositions.Params()
    raise ValueError(f'transformer_lm_layers: positions is {kind!r}{wording.did_you_mean(str(kind), POSITIONS)}')
