"""Embeddings of tokens and positions, and the softmax layer."""

import math
from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

from lingpipe import hyperparams, wording
from lingpipe.layers import attention, base_layer


class _AddedPositions(base_layer.BaseLayer):
    """The base class of layers that add a vector at each position."""

    @classmethod
    def Params(cls) -> base_layer.LayerParams:
        p = super().Params()
        p.Define('input_dropout_prob', 0.0, 'Dropout of what goes into the first block.')
        return p

    def __init__(self, params: hyperparams.Params, **kwargs: Any) -> None:
        super().__init__(params, **kwargs)
        self.supports_masking = True
        self.dropout = keras.layers.Dropout(params.input_dropout_prob, name='dropout', dtype=self.dtype_policy)

    def call(self, inputs: tf.Tensor, start: int | tf.Tensor = 0, training: bool | None = None) -> tf.Tensor:
        """Add the vectors of the positions from `start`, then apply dropout."""
        vectors = keras.ops.cast(self.vectors(start, inputs.shape[1], inputs.shape[2]), inputs.dtype)
        return self.dropout(inputs + vectors, training=training)

    def decode(self, inputs: tf.Tensor, cache: tuple, start: int | tf.Tensor) -> tuple[tf.Tensor, Any]:
        """Add positions to inputs `[batch, n, model_dim]`. Return the sum and the unchanged cache."""
        return self(inputs, start=start), cache


class NoPositions(_AddedPositions):
    """A layer that applies only dropout, for networks without added positions."""

    def vectors(self, start: int | tf.Tensor, length: int, model_dim: int) -> tf.Tensor:
        """Return zeros `[length, model_dim]`."""
        del start
        return keras.ops.zeros((length, model_dim))


class LearnedPositions(_AddedPositions):
    """A layer that adds a trained vector at each position."""

    @classmethod
    def Params(cls) -> base_layer.LayerParams:
        p = super().Params()
        p.Define('max_length', None, 'Number of positions.')
        return p

    def build(self, input_shape: Any) -> None:
        _, length, model_dim = input_shape
        if self.params.max_length is None or (length or 0) > self.params.max_length:
            raise ValueError(f'LearnedPositions.max_length is {self.params.max_length}, but sequences have {length} '
                             f'positions. Set it to {length} at least.')
        self.table = self.add_weight(
            name='table', shape=(self.params.max_length, model_dim),
            initializer=keras.initializers.RandomNormal(stddev=0.02))

    def vectors(self, start: int | tf.Tensor, length: int, model_dim: int) -> tf.Tensor:
        """Return the trained vectors `[length, model_dim]` of the positions from `start`."""
        return keras.ops.slice(self.table, (start, 0), (length, model_dim))


class SinusoidalPositions(_AddedPositions):
    """A layer that adds sines and cosines of the position to the vectors (arXiv 1706.03762, section 3.5).

    There are d channels. At position t >= 0, channel i gets sin(a), and channel i + d/2 gets cos(a), with
    a = t / 10000^(2i / d). As in Lingvo, sines and cosines are not interleaved.
    """

    def vectors(self, start: int | tf.Tensor, length: int, model_dim: int) -> tf.Tensor:
        """Return sines and cosines `[length, model_dim]` for the positions from `start`. `model_dim` is even."""
        angles = attention.angles(start, length, model_dim // 2)
        return keras.ops.concatenate([keras.ops.sin(angles), keras.ops.cos(angles)], axis=-1)


class TokenEmbedding(base_layer.BaseLayer):
    """A layer that looks up a vector for every token in a table. A softmax may share the table; see `TiedTable`.

    Initially the table has standard deviation 1 / sqrt(model_dim). The layer multiplies vectors by sqrt(model_dim).
    These vectors, and logits from the same table, then have variance 1 (arXiv 1706.03762, section 3.4).
    """

    @classmethod
    def Params(cls) -> base_layer.LayerParams:
        p = super().Params()
        p.Define('vocab_size', None, 'Number of different tokens.')
        p.Define('model_dim', None, 'Size of a vector.')
        p.Define(
            'padding_id', None, 'Token that later layers are not to attend to, as a Keras mask; None: there is none.')
        return p

    def __init__(self, params: hyperparams.Params, **kwargs: Any) -> None:
        super().__init__(params, **kwargs)
        base_layer.require_size(params, 'vocab_size', 'model_dim')

    def build(self, input_shape: Any) -> None:
        self.table = _new_table(self, self.params.vocab_size, self.params.model_dim)

    def call(self, inputs: Any) -> tf.Tensor:
        """Map tokens, integers `[batch, length]`, to vectors `[batch, length, model_dim]`."""
        tokens = keras.ops.cast(inputs, 'int32')  # a Sequential model passes floats
        vectors = keras.ops.take(self.table, tokens, axis=0) * math.sqrt(self.params.model_dim)
        return keras.ops.cast(vectors, self.compute_dtype)

    def compute_mask(self, inputs: Any, previous: Any = None) -> tf.Tensor:
        if self.params.padding_id is None:
            return previous
        return keras.ops.not_equal(inputs, self.params.padding_id)


def _new_table(layer, vocab_size, model_dim):
    initializer = keras.initializers.RandomNormal(stddev=model_dim**-0.5)
    return layer.add_weight(name='table', shape=(vocab_size, model_dim), initializer=initializer)


class TiedTable(base_layer.BaseLayer):
    """The base class of layers that may use the table of an embedding (arXiv 1608.05859).

    The pipeline sends the table to the partition of this layer, and sends the gradient of the table back. Without a
    pipeline, the layer creates its own table.
    """

    table: Any
    # A function, because Keras would count a layer in an attribute as a part of this one.
    _tied_embedding = staticmethod(lambda: None)

    @classmethod
    def Params(cls) -> base_layer.LayerParams:
        p = super().Params()
        p.Define('tied_to', None, 'Name of the TokenEmbedding whose table is used; None: a table of its own.')
        return p

    def tie(self, layers: Mapping[str, keras.layers.Layer]) -> None:
        """Find the embedding whose table this layer uses. Call this method before the layers are built.

        Raises:
            ValueError: there is no such embedding.
        """
        name = self.params.tied_to
        if name is None:
            return
        embeddings = [each for each, layer in layers.items() if isinstance(layer, TokenEmbedding)]
        if name not in embeddings:
            raise ValueError(f'{type(self).__name__}.tied_to is {name!r}, which is not a TokenEmbedding of the stack'
                             f'{wording.did_you_mean(str(name), embeddings)} Set it to the name of one, or to None.')
        self._tied_embedding = lambda: layers[name]

    @property
    def borrowed_variables(self) -> list[keras.Variable]:
        """The variables that belong to another layer."""
        return [] if self.params.tied_to is None else [self.table]

    def find_table(self, vocab_size: int, model_dim: int) -> keras.Variable:
        """Return the table of the tied embedding, or a new table if no embedding is tied.

        Raises:
            ValueError: the table has another shape.
        """
        tied = self._tied_embedding()
        if tied is None:
            return _new_table(self, vocab_size, model_dim)
        if tuple(tied.table.shape) != (vocab_size, model_dim):
            raise ValueError(
                f'{type(self).__name__}.tied_to is {tied.name!r}, whose table has shape {tuple(tied.table.shape)}, but '
                f'{(vocab_size, model_dim)} is needed. Give both one vocab_size, or set tied_to to None.')
        return tied.table


class SoftmaxHead(TiedTable):
    """A layer norm, then a product with a table of token vectors, then a bias. The loss applies the softmax.

    With `tied_to`, the table belongs to an embedding in the same stack; see `TiedTable`.
    """

    @classmethod
    def Params(cls) -> base_layer.LayerParams:
        p = super().Params()
        p.Define('vocab_size', None, 'Number of different tokens.')
        return p

    def __init__(self, params: hyperparams.Params, **kwargs: Any) -> None:
        super().__init__(params, **kwargs)
        self.supports_masking = True
        base_layer.require_size(params, 'vocab_size')
        self.norm = keras.layers.LayerNormalization(
            epsilon=base_layer.NORM_EPSILON, name='norm', dtype=self.dtype_policy)

    def build(self, input_shape: Any) -> None:
        vocab_size, model_dim = self.params.vocab_size, input_shape[-1]
        self.norm.build(input_shape)
        self.table = self.find_table(vocab_size, model_dim)
        self.bias = self.add_weight(name='bias', shape=(vocab_size,), initializer='zeros')

    def call(self, inputs: Any) -> tf.Tensor:
        """Map `[batch, length, model_dim]` to logits `[batch, length, vocab_size]` of at least float32."""
        logits = keras.ops.einsum('btd,vd->btv', self.norm(inputs), self.table)
        return base_layer.as_logits(logits + self.bias)
