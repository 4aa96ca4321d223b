"""Tokenization of text, and packed sequences of its tokens, from memory if they fit, else from files.

Documents follow each other without padding. Both sources have the same method, so one input pipeline works with both:

```
sequences(position, share, batch_size) -> endless tokens int32 [length + 1], from sequence number `position` on, those
                                          of a share of each batch; the first `length` are the input, the last
                                          `length` are to be predicted
```
"""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import tensorflow as tf

from lingpipe import hyperparams
from lingpipe.input import batch_share

_LAST_EPOCH = np.iinfo(np.int64).max // 4

# No function here branches on a tensor. AutoGraph would take most of the start-up time to find that out.
_without_autograph = tf.autograph.experimental.do_not_convert


class ByteTokenizer:
    """Every byte is a token; byte 0, which does not occur in text, ends a document.

    Another tokenizer is a class with the same attributes and methods, set as the field `tokenizer` of `TextInput`.

    Attributes:
        vocab_size: number of different tokens.
        end_id: the token that ends a document; the first token of a text is predicted from it, and it is the padding.
        start_ids: the tokens at the start of a text in a row of `InstructionInput` and in generation.
        stop_ids: the tokens that end a text in generation.
        pad_id: the token that pads a row of `InstructionInput`.
    """

    vocab_size = 256
    end_id = 0
    start_ids = (0,)
    stop_ids = (0,)
    pad_id = 0

    @classmethod
    def Params(cls) -> hyperparams.InstantiableParams:
        """Returns the InstantiableParams of this tokenizer."""
        hyperparams.RegisterType(cls)
        return hyperparams.InstantiableParams(cls)

    def __init__(self, params: hyperparams.Params) -> None:
        self.params = params

    def encode(self, text: tf.Tensor) -> tf.Tensor:
        """Maps a text, a scalar string tensor, to tokens, int32 `[length]`, without an end."""
        return tf.cast(tf.io.decode_raw(text, tf.uint8), tf.int32)

    def decode(self, tokens: Iterable[int]) -> str:
        """Returns the text, a Python string, of a sequence of integers; bytes that are not UTF-8 become '\\ufffd'."""
        return bytes(token for token in map(int, tokens) if token != self.end_id).decode('utf-8', errors='replace')

    def num_bytes(self, tokens: tf.Tensor) -> tf.Tensor:
        """Returns the number of bytes of text of each token, float32; the end of a document counts as one byte."""
        return tf.ones_like(tokens, tf.float32)


def prompt_tokens(tokenizer: Any, prompt: str) -> list[int]:
    """Returns the tokens of a text at the start of a document, as in training; at least one.

    Args:
        tokenizer: tokenizer.
        prompt: the text; if it is empty and texts have no start token, the result is the end of a document.
    """
    return [*tokenizer.start_ids, *tokenizer.encode(tf.constant(prompt)).numpy().tolist()] or [tokenizer.end_id]


def continuation(tokenizer: Any, known: list[int], written: list[int]) -> str:
    """Returns the text that was written after a prompt.

    Both are decoded together, because SentencePiece shows no space before the first token of a text.

    Args:
        tokenizer: tokenizer.
        known: tokens of the prompt.
        written: tokens that follow, without a stop.
    """
    before, whole = tokenizer.decode(known), tokenizer.decode([*known, *written])
    return whole[len(before):] if whole[:len(before)] == before else tokenizer.decode(written)


class MemoryTokens:
    """All documents in memory as one ring of tokens, which every epoch cuts at different places.

    ::

        epoch 0   |----3----|----0----|----2----|----1----|--    cut from a place drawn from (seed, epoch) on,
        epoch 1   --|----1----|----2----|----0----|----3----|    and visited in an order drawn from it

    Args:
        tokens: integer array `[n]`, every document with its end.
        length: number of tokens to predict in a sequence.
        seed: integer that places and orders depend on.
        shuffle: whether they are random; otherwise every epoch has the same sequences in stored order.
    """

    def __init__(self, tokens: np.ndarray, length: int, seed: int, shuffle: bool) -> None:
        self._length, self._seed, self._shuffle = length, seed, shuffle
        with tf.device('CPU:0'):
            self._tokens = tf.constant(tokens, tf.int32)
        self.num_sequences = len(tokens) // length

    @_without_autograph
    def sequences(self, position: int, share: batch_share.Share, batch_size: int) -> tf.data.Dataset:
        """Returns endless sequences; starts at any position at once, and makes only those of the share."""
        first_epoch, first_index = divmod(position, self.num_sequences)

        def starts_of_epoch(epoch):
            num_skipped = tf.where(epoch == first_epoch, tf.constant(first_index, tf.int64), tf.constant(0, tf.int64))
            return tf.data.Dataset.from_tensor_slices(self._starts(epoch)).skip(num_skipped)

        starts = tf.data.Dataset.range(first_epoch, _LAST_EPOCH).flat_map(starts_of_epoch)
        return share.of(starts, batch_size).map(self._sequence)

    def _starts(self, epoch):
        numbers = tf.range(self.num_sequences, dtype=tf.int64)
        if not self._shuffle:
            return numbers * self._length
        place_seed, order_seed = (tf.stack([self._seed, 2 * epoch + purpose]) for purpose in (0, 1))
        place = tf.random.stateless_uniform([], place_seed, maxval=tf.size(self._tokens, tf.int64), dtype=tf.int64)
        return place + self._length * tf.random.experimental.stateless_shuffle(numbers, order_seed)

    def _sequence(self, start):
        places = start + tf.range(self._length + 1, dtype=tf.int64)
        return tf.gather(self._tokens, places % tf.size(self._tokens, tf.int64))


class StreamedTokens:
    """Documents, read again in every epoch, one after the other in shuffled order, cut when a sequence is full.

    The number of sequences of an epoch is unknown until it has been read. So a resumed training run again reads and
    tokenizes everything that it has seen.

    Args:
        read: function from the seed of the order of the files (int64 scalar, or None for stored order) to a
            `tf.data.Dataset` of documents' tokens int32 `[n]`, each with its end.
        length: number of tokens to predict in a sequence.
        end_id: the token from which the first one is predicted.
        seed: integer that orders depend on.
        shuffle_buffer_size: number of documents in the shuffle buffer; 0: stored order.
    """

    def __init__(self, read: Callable[[tf.Tensor | None], tf.data.Dataset], length: int, end_id: int, seed: int,
                 shuffle_buffer_size: int) -> None:
        self._read, self._length, self._end_id, self._seed = read, length, end_id, seed
        self._shuffle_buffer_size = shuffle_buffer_size

    @_without_autograph
    def sequences(self, position: int, share: batch_share.Share, batch_size: int) -> tf.data.Dataset:
        """Returns endless sequences; a late start has to read everything before it, and a share reads all rows."""
        tokens = tf.data.Dataset.range(_LAST_EPOCH).flat_map(self._documents_of_epoch)
        labels = share.of(tokens.rebatch(self._length).skip(position), batch_size)
        return labels.map(lambda row: tf.concat([[self._end_id], row], 0))

    def _documents_of_epoch(self, epoch):
        if not self._shuffle_buffer_size:
            return self._read(None)
        # Dataset.shuffle mixes the graph's seed into its own; see ImageInput.
        tf.compat.v1.get_default_graph().seed = 1
        seed = tf.random.stateless_uniform([], tf.stack([self._seed, epoch]), minval=None, maxval=None, dtype=tf.int64)
        return self._read(seed).shuffle(self._shuffle_buffer_size, seed=seed, reshuffle_each_iteration=False)


def evaluation_sequences(tokens: np.ndarray, length: int, context: int, end_id: int) -> tuple[np.ndarray, np.ndarray]:
    """Cuts a text so that every token is predicted once, with at least `context` tokens before it, except the first.

        |--------| counts        length 8, context 3
             |ccc-----|          c: shown, but counted before
                  |ccc-----|

    Args:
        tokens: integer array `[n]`, every document with its end.
        length: number of tokens in a sequence.
        context: how many tokens of a sequence are only shown.
        end_id: the token from which the first one is predicted; it also pads the last sequence.

    Returns:
        Arrays int32 `[count, length + 1]`, whose last `length` tokens are to be predicted, and float32
        `[count, length]`, their weights.
    """
    advance = length - context
    count = 1 + max(0, -(-(len(tokens) - length) // advance))
    starts: np.ndarray = advance * np.arange(count)
    padded = np.full(1 + starts[-1] + length, end_id, np.int32)
    padded[1:1 + len(tokens)] = tokens
    places = starts[:, np.newaxis] + np.arange(length + 1)
    weights = (places[:, :-1] < len(tokens)) & ((np.arange(length) >= context) | (starts == 0)[:, np.newaxis])
    return padded[places], weights.astype(np.float32)
