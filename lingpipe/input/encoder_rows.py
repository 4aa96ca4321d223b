"""Rows of tokens as the encoders of KerasHub take them: start, tokens, end, padding."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from lingpipe import hyperparams


def specs(params: hyperparams.Params) -> dict[str, tf.TensorSpec]:
    """Returns the dictionary of the `tf.TensorSpec` `[batch_size, sequence_length]` of an encoder's tensors.

    Args:
        params: Params of an input, with `tokenizer`, `batch_size` and `sequence_length`.

    Raises:
        ValueError: the tokenizer does not belong to an encoder.
    """
    cls = params.tokenizer.cls
    if not hasattr(cls, 'ClassifierFeatures'):
        raise ValueError(f'tokenizer: {cls.__name__} belongs to no encoder of KerasHub. Set it to the params of a '
                         "KerasHubTokenizer, or of a BytePairTokenizer with keras_hub_class='RobertaTokenizer'.")
    shape = [params.batch_size, params.sequence_length]
    return {name: tf.TensorSpec(shape, tf.bool if name == 'padding_mask' else tf.int32)
            for name in cls.ClassifierFeatures(params.tokenizer)}


class EncoderRows:
    """Puts the special tokens of a tokenizer around the tokens of each row.

    ::

        <s> token token ... </s> <pad> <pad>    room: the tokens that fit between <s> and </s>

    Args:
        tokenizer: tokenizer of an input, of KerasHub's kind.
        sequence_length: number of tokens in a row.

    Attributes:
        room: number of tokens of a text that a row holds.

    Raises:
        ValueError: a row has no room.
    """

    def __init__(self, tokenizer: Any, sequence_length: int) -> None:
        special = tokenizer.keras_hub_tokenizer()
        self._start, self._end, self._padding = special.start_token_id, special.end_token_id, special.pad_token_id
        self._length = sequence_length
        self.room = sequence_length - 2
        if self.room < 1:
            raise ValueError(f'sequence_length: {sequence_length} has no room for a token between the start and the '
                             'end of a row. Set it to 3 at least.')

    def tokens(self, parts: Sequence[Sequence[int]]) -> np.ndarray:
        """Returns int32 `[n, sequence_length]`, the tokens of each row between its special tokens.

        Args:
            parts: for each row, at most `room` tokens.
        """
        return self._filled(parts, self._start, self._end, self._padding)

    def beside(self, parts: Sequence[Sequence[int]], nothing: int) -> np.ndarray:
        """Returns int32 `[n, sequence_length]`, the value of each token at its place, `nothing` at special tokens.

        Args:
            parts: for each row, a value for each of its tokens, such as the number of its class.
            nothing: the value for special tokens and padding.
        """
        return self._filled(parts, nothing, nothing, nothing)

    def lengths(self, parts: Sequence[Sequence[int]]) -> np.ndarray:
        """Returns int32 `[n]`, the number of tokens of each row without padding."""
        return np.array([len(part) + 2 for part in parts], np.int32)

    def _filled(self, parts, start, end, padding):
        rows = np.full([len(parts), self._length], padding, np.int32)
        for row, part in zip(rows, parts):
            row[:len(part) + 2] = [start, *part, end]
        return rows


def inputs(wanted: dict[str, tf.TensorSpec], token_ids: tf.Tensor, lengths: tf.Tensor) -> dict[str, tf.Tensor]:
    """Returns the tensors of a batch that an encoder takes; a row is one segment.

    Args:
        wanted: what `specs` returned.
        token_ids: int32 `[batch, sequence_length]`.
        lengths: int32 `[batch]`, as `EncoderRows.lengths` returned them.
    """
    mask = tf.range(token_ids.shape[1]) < lengths[:, tf.newaxis]
    known = {'token_ids': token_ids, 'padding_mask': mask, 'segment_ids': tf.zeros_like(token_ids)}
    return {name: known[name] for name in wanted}
