"""Text as tokens, from memory if they fit, else from files; documents are packed, so that nothing is padded.

Both sources have the same method, so that one pipeline serves both:

```
sequences(position) -> tokens int32 [length + 1] without end, from sequence number `position` on; the first `length` are
the
                       input, the last `length` what is to be predicted
```
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from lingpipe import hyperparams

_LAST_EPOCH = np.iinfo(np.int64).max // 4

# No function here branches on a tensor, and AutoGraph takes most of the start-up time to find that out.
_without_autograph = tf.autograph.experimental.do_not_convert


class ByteTokenizer:
    """Every byte is a token; byte 0, which does not occur in text, ends a document.

    A tokenizer of another kind is a class with the same attributes and methods, to be set as `TextInput`'s `tokenizer`.

    Attributes:
        vocab_size: number of different tokens.
        end_id: the token that ends a document; also what the first token of a text is predicted from, and padding.
    """

    vocab_size = 256
    end_id = 0

    @classmethod
    def Params(cls) -> Any:
        """Returns the InstantiableParams of this tokenizer."""
        hyperparams.RegisterType(cls)
        return hyperparams.InstantiableParams(cls)

    def __init__(self, params: Any) -> None:
        self.params = params

    def encode(self, text: Any) -> Any:
        """Maps a text, a scalar string tensor, to tokens, int32 `[length]`, without an end."""
        return tf.cast(tf.io.decode_raw(text, tf.uint8), tf.int32)

    def decode(self, tokens: Any) -> str:
        """Returns the text, a Python string, of a sequence of integers; bytes that are no UTF-8 show as '\\ufffd'."""
        return bytes(token for token in map(int, tokens) if token != self.end_id).decode('utf-8', errors='replace')

    def num_bytes(self, tokens: Any) -> Any:
        """Returns how many bytes of text each token stands for, float32; the end of a document counts as one."""
        return tf.ones_like(tokens, tf.float32)


class MemoryTokens:
    """All documents in memory as one ring of tokens, which every epoch cuts at other places.

    ::

        epoch 0   |----3----|----0----|----2----|----1----|--    cut from a place drawn from (seed, epoch) on, and
        visited epoch 1   --|----1----|----2----|----0----|----3----|    in an order drawn from it

    Args:
        tokens: integer array `[n]`, every document with its end.
        length: number of tokens to predict in a sequence.
        seed: integer that places and orders depend on.
        shuffle: whether they are drawn; otherwise the same cut in stored order comes in every epoch.
    """

    def __init__(self, tokens: Any, length: int, seed: int, shuffle: bool) -> None:
        self._length, self._seed, self._shuffle = length, seed, shuffle
        with tf.device('CPU:0'):
            self._tokens = tf.constant(tokens, tf.int32)
        self.num_sequences = len(tokens) // length

    @_without_autograph
    def sequences(self, position: Any) -> Any:
        """Returns sequences without end; starts anywhere at once."""
        first_epoch, first_index = divmod(position, self.num_sequences)

        def starts_of_epoch(epoch):
            num_skipped = tf.where(epoch == first_epoch, tf.constant(first_index, tf.int64), tf.constant(0, tf.int64))
            return tf.data.Dataset.from_tensor_slices(self._starts(epoch)).skip(num_skipped)

        starts = tf.data.Dataset.range(first_epoch, _LAST_EPOCH).flat_map(starts_of_epoch)
        return starts.map(self._sequence)

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
    """Documents read anew in every epoch, one after the other in shuffled order, cut where a sequence is full.

    How many sequences an epoch has is not known before it is read, so a resumed training run reads, and tokenizes, all
    that it has seen once more.

    Args:
        read: function from the seed of the order of the files (int64 scalar, or None for stored order) to a
            `tf.data.Dataset` of documents' tokens int32 `[n]`, each with its end.
        length: number of tokens to predict in a sequence.
        end_id: the token that the first one is predicted from.
        seed: integer that orders depend on.
        shuffle_buffer_size: how many documents wait for being drawn; 0: stored order.
    """

    def __init__(self, read: Callable | None, length: int, end_id: Any, seed: int, shuffle_buffer_size: Any) -> None:
        self._read, self._length, self._end_id, self._seed = read, length, end_id, seed
        self._shuffle_buffer_size = shuffle_buffer_size

    @_without_autograph
    def sequences(self, position: Any) -> Any:
        """Returns sequences without end; see above what it costs to start late."""
        tokens = tf.data.Dataset.range(_LAST_EPOCH).flat_map(self._documents_of_epoch)
        labels = tokens.rebatch(self._length).skip(position)
        return labels.map(lambda row: tf.concat([[self._end_id], row], 0))

    def _documents_of_epoch(self, epoch):
        if not self._shuffle_buffer_size:
            return self._read(None)
        # Dataset.shuffle mixes the graph's seed into its own; see ImageInput.
        tf.compat.v1.get_default_graph().seed = 1
        seed = tf.random.stateless_uniform([], tf.stack([self._seed, epoch]), minval=None, maxval=None, dtype=tf.int64)
        return self._read(seed).shuffle(self._shuffle_buffer_size, seed=seed, reshuffle_each_iteration=False)


def evaluation_sequences(tokens: Any, length: int, context: Any, end_id: Any) -> Any:
    """Cuts a text so that every token is predicted once, each but the first ones from `context` tokens or more.

        |--------| counts        length 8, context 3
             |ccc-----|          c: shown, but counted before
                  |ccc-----|

    Args:
        tokens: integer array `[n]`, every document with its end.
        length: number of tokens in a sequence.
        context: how many tokens of a sequence are there to be seen only.
        end_id: what the first token is predicted from; it also fills the last sequence.

    Returns:
        Arrays int32 `[count, length + 1]`, of which the last `length` tokens are to be predicted, and float32
        `[count, length]`, their weights.
    """
    advance = length - context
    count = 1 + max(0, -(-(len(tokens) - length) // advance))
    starts = advance * np.arange(count)
    padded = np.full(1 + starts[-1] + length, end_id, np.int32)
    padded[1:1 + len(tokens)] = tokens
    places = starts[:, np.newaxis] + np.arange(length + 1)
    weights = (places[:, :-1] < len(tokens)) & ((np.arange(length) >= context) | (starts == 0)[:, np.newaxis])
    return padded[places], weights.astype(np.float32)
