"""Multi-head attention and rotary positions."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from lingpipe import hyperparams
from lingpipe.layers import base_layer

_LARGEST_WAVELENGTH = 10_000.0


def angles(start: int | tf.Tensor, length: int, num_waves: int) -> tf.Tensor:
    """Return angles `[length, num_waves]`. Entry [j, i] is (start + j) / 10000^(i / num_waves)."""
    frequencies = _LARGEST_WAVELENGTH ** (-np.arange(num_waves, dtype=np.float32) / num_waves)
    return keras.ops.cast(start + keras.ops.arange(length), 'float32')[:, None] * frequencies


def rotate(vectors: tf.Tensor, start: int | tf.Tensor = 0) -> tf.Tensor:
    """Rotate the channels (i, i + h/2) at position t by the angle t / 10000^(2i / h).

    The product of a rotated query and a rotated key depends only on the difference of the two positions (arXiv
    2104.09864, section 3.2.2).

    Args:
        vectors: `[batch, length, num_heads, h]`, with an even h.
        start: position of the first vector.
    """
    num_pairs = vectors.shape[3] // 2
    turns = angles(start, vectors.shape[1], num_pairs)[:, None]
    sine, cosine = (keras.ops.cast(wave, vectors.dtype) for wave in (keras.ops.sin(turns), keras.ops.cos(turns)))
    first, second = vectors[..., :num_pairs], vectors[..., num_pairs:]
    return keras.ops.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=-1)


def dense(layer: base_layer.BaseLayer, name: str, units: int, scale: float = 1.0) -> keras.layers.Dense:
    """Return a dense layer with the dtype policy of `layer`. The initial kernel has variance scale^2 / fan_in."""
    initializer = keras.initializers.VarianceScaling(scale**2, 'fan_in', 'truncated_normal')
    return keras.layers.Dense(
        units, kernel_initializer=initializer, name=name, dtype=layer.dtype_policy)


class MultiHeadAttention(base_layer.BaseLayer):
    """Multi-head self-attention (arXiv 1706.03762, section 3.2.2).

    One matrix product computes queries, keys and values::

        x ─> dense ─┬─> queries [batch, length, heads, h] ─┐ rotated, if positions are rotary
                    ├─> keys ──────────────────────────────┤
                    └─> values ────────────────────────────┴─> softmax(q k / sqrt(h)) v ─> dense ─>

    Decoding calls `project`, `attend` and `combine` separately, to cache keys and values.
    """

    @classmethod
    def Params(cls) -> base_layer.LayerParams:
        p = super().Params()
        p.Define('num_heads', 8, 'Number of heads.')
        p.Define('dim_per_head', None, 'Size of a head; None: that of the vectors, divided by the number of heads.')
        p.Define('is_causal', True, 'Whether a position attends to itself and those before it only.')
        p.Define('use_rotary_positions', False, 'Whether queries and keys are turned by their positions.')
        p.Define('atten_dropout_prob', 0.0,
                 "Dropout of the attention weights; with it, training avoids Keras's operation.")
        p.Define('output_scale', 1.0, 'Factor of the initial weights of the last dense layer.')
        return p

    def __init__(self, params: hyperparams.Params, **kwargs: Any) -> None:
        super().__init__(params, **kwargs)
        self.supports_masking = True

    def build(self, input_shape: Any) -> None:
        p, model_dim = self.params, input_shape[-1]
        self.head_dim = self._head_dim(model_dim)
        inner_dim = p.num_heads * self.head_dim
        self._build_projections(input_shape, inner_dim)
        self.output_projection = dense(self, 'output_projection', model_dim, p.output_scale)
        self.dropout = keras.layers.Dropout(p.atten_dropout_prob, name='dropout', dtype=self.dtype_policy)
        self.output_projection.build((*input_shape[:-1], inner_dim))

    def _build_projections(self, input_shape, inner_dim):
        self.projection = dense(self, 'projection', 3 * inner_dim)
        self.projection.build(input_shape)

    def _head_dim(self, model_dim):
        p = self.params
        head_dim = p.dim_per_head or model_dim // p.num_heads
        is_rotary = 'use_rotary_positions' in p and p.use_rotary_positions
        if not p.dim_per_head and model_dim % p.num_heads or is_rotary and head_dim % 2:
            raise ValueError(
                f'{type(self).__name__}.num_heads is {p.num_heads}, but vectors have {model_dim} channels: '
                'heads need an equal number of them, an even one for rotary positions. '
                'Choose another num_heads, or set dim_per_head.')
        return head_dim

    def call(self, inputs: tf.Tensor, mask: tf.Tensor | None = None, training: bool | None = None) -> tf.Tensor:
        """Map `[batch, length, model_dim]` to the same shape.

        Args:
            mask: boolean `[batch, length]`, False at positions to ignore; None: attend everywhere.
        """
        queries, keys, values = self.project(inputs)
        allowed = None if mask is None else mask[:, None, None, :]
        return self.combine(self.attend(queries, keys, values, allowed, self.params.is_causal, training))

    def project(self, inputs: tf.Tensor, start: int | tf.Tensor = 0) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Return queries, keys and values `[batch, length, num_heads, h]` of inputs that begin at position `start`."""
        queries, keys, values = map(self._heads, keras.ops.split(self.projection(inputs), 3, axis=-1))
        if self.params.use_rotary_positions:
            queries, keys = rotate(queries, start), rotate(keys, start)
        return queries, keys, values

    def _heads(self, vectors):
        return keras.ops.reshape(vectors, (-1, vectors.shape[1], self.params.num_heads, self.head_dim))

    def attend(self, queries: tf.Tensor, keys: tf.Tensor, values: tf.Tensor, allowed: tf.Tensor | None = None,
               is_causal: bool = False, training: bool | None = None) -> tf.Tensor:
        """Return the weighted means `[batch, queries, num_heads, h]` of the values.

        Args:
            queries: `[batch, queries, num_heads, h]`.
            keys: `[batch, keys, num_heads, h]`.
            allowed: boolean that can broadcast to `[batch, num_heads, queries, keys]`; None: all keys are allowed.
            is_causal: whether query t sees only keys 0 to t.
        """
        if not (training and self.params.atten_dropout_prob):
            return keras.ops.dot_product_attention(queries, keys, values, mask=allowed, is_causal=is_causal)
        weights = self.dropout(_attention_weights(queries, keys, allowed, is_causal), training=training)
        return keras.ops.einsum('bnts,bsnh->btnh', weights, values)

    def initial_cache(self, batch_size: int, length: int) -> tuple[tf.Tensor, ...]:
        """Return an empty cache of keys and values for `decode`, each `[batch_size, length, num_heads, h]`."""
        shape = (batch_size, length, self.params.num_heads, self.head_dim)
        return tuple(keras.ops.zeros(shape, self.compute_dtype) for _ in range(2))

    def decode(self, inputs: tf.Tensor, cache: tuple[tf.Tensor, ...],
               start: int | tf.Tensor) -> tuple[tf.Tensor, tuple[tf.Tensor, ...]]:
        """Compute attention for the next vectors of a sequence, given a cache of the earlier vectors.

        Args:
            inputs: `[batch, n, model_dim]`, of positions `start` to `start + n - 1`.
            cache: keys and values of the positions before `start`, from `initial_cache` or from the last call.
            start: integer scalar tensor; `start + n` is at most the length of the cache.

        Returns:
            Outputs `[batch, n, model_dim]`, and the cache with the new keys and values.

        Raises:
            ValueError: the attention is not causal.
        """
        if not self.params.is_causal:
            raise ValueError(f'MultiHeadAttention.is_causal is False in {self.name!r}, but text is generated from left '
                             'to right. Set it to True and train.')
        queries, *new = self.project(inputs, start)
        keys, values = (_with_part(old, part, start) for old, part in zip(cache, new))
        last_seen = start + keras.ops.arange(inputs.shape[1])
        allowed = keras.ops.arange(keys.shape[1])[None, :] <= last_seen[:, None]
        return self.combine(self.attend(queries, keys, values, allowed[None, None])), (keys, values)

    def combine(self, heads: tf.Tensor) -> tf.Tensor:
        """Map `[batch, length, num_heads, h]` to `[batch, length, model_dim]`."""
        return self.output_projection(keras.ops.reshape(heads, (-1, heads.shape[1], heads.shape[2] * heads.shape[3])))


def _attention_weights(queries, keys, allowed, is_causal):
    """Return attention weights `[batch, num_heads, queries, keys]`."""
    dtype = keras.backend.result_type(queries.dtype, 'float32')  # the softmax is computed in at least float32
    logits = keras.ops.cast(keras.ops.einsum('btnh,bsnh->bnts', queries, keys), dtype) / queries.shape[-1] ** 0.5
    if is_causal:
        causal = keras.ops.tril(keras.ops.ones(logits.shape[-2:], 'bool'))
        allowed = causal if allowed is None else keras.ops.logical_and(allowed, causal)
    if allowed is not None:
        logits = keras.ops.where(allowed, logits, keras.ops.cast(-1e9, dtype))
    return keras.ops.cast(keras.ops.softmax(logits), queries.dtype)


class CrossAttention(MultiHeadAttention):
    """Attention of a target to a source (arXiv 1706.03762, section 3.2.3).

        target ─> dense ───> queries ────────────┐
        source ─> dense ─┬─> keys ───────────────┤
                         └─> values ─────────────┴─> softmax(q k / sqrt(h)) v ─> dense ─>
    """

    @classmethod
    def Params(cls) -> base_layer.LayerParams:
        return super().Params().Delete('is_causal', 'use_rotary_positions')

    def _build_projections(self, input_shape, inner_dim):
        """Create the weights from the shape of the target."""
        self.query_projection = dense(self, 'query_projection', inner_dim)
        self.key_value_projection = dense(self, 'key_value_projection', 2 * inner_dim)
        self.query_projection.build(input_shape)
        self.key_value_projection.build(input_shape)  # vectors of the source must have the same size

    def call(self, inputs: tf.Tensor, source: tf.Tensor | None = None,  # type: ignore[override]  # other arguments
             source_mask: tf.Tensor | None = None, training: bool | None = None) -> tf.Tensor:
        """Map the target, `[batch, length, model_dim]`, to the same shape.

        Args:
            source: `[batch, source_length, model_dim]`.
            source_mask: boolean `[batch, source_length]`, False at positions to ignore; None: attend everywhere.
        """
        return self.attend_to(inputs, self.project_source(source), source_mask, training)

    def project_source(self, source: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """Return the keys and values `[batch, source_length, num_heads, h]` of a source."""
        return tuple(map(self._heads, keras.ops.split(self.key_value_projection(source), 2, axis=-1)))

    def attend_to(self, inputs: tf.Tensor, keys_and_values: tuple[tf.Tensor, ...],
                  source_mask: tf.Tensor | None = None, training: bool | None = None) -> tf.Tensor:
        """Attend to the keys and values from `project_source`; see `call`."""
        queries, (keys, values) = self._heads(self.query_projection(inputs)), keys_and_values
        allowed = None if source_mask is None else source_mask[:, None, None, :]
        return self.combine(self.attend(queries, keys, values, allowed, training=training))


def _with_part(cache, part, start):
    """Return a copy of `cache` with `part` at the positions from `start`."""
    # `keras.ops.slice_update` is not used, because TPU builds of TensorFlow cannot run it on CPUs.
    places = keras.ops.arange(cache.shape[1]) - start
    is_new = (places >= 0) & (places < part.shape[1])
    placed = keras.ops.take(part, keras.ops.clip(places, 0, part.shape[1] - 1), axis=1)
    return keras.ops.where(keras.ops.reshape(is_new, (1, -1, 1, 1)), placed, cache)
