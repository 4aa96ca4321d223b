"""The base class of inputs for the encoders of KerasHub, whose rows are start, tokens, end, padding."""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from lingpipe import hyperparams
from lingpipe.input import record_input


class EncoderInput(record_input.RecordInput):
    """Records of texts as the tensors that an encoder takes."""

    @staticmethod
    def InputSpec(params: hyperparams.Params) -> dict[str, tf.TensorSpec]:
        """Returns the dictionary of the `tf.TensorSpec` `[batch_size, sequence_length]`; reads no records.

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

    @property
    def _room(self):
        """Number of tokens that a row holds between its start and its end."""
        length = self.params.sequence_length
        if length < 3:
            raise ValueError(f'sequence_length: {length} has no room for a token between the start and the end of a '
                             'row. Set it to 3 at least.')
        return length - 2

    def _token_rows(self, parts: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
        """Returns the rows of parts of at most `_room` tokens, int32 `[n, length]`, and their lengths, int32 `[n]`."""
        special = self.tokenizer.keras_hub_tokenizer()
        rows = [[special.start_token_id, *part, special.end_token_id] for part in parts]
        return (record_input.filled(rows, self.params.sequence_length, special.pad_token_id),
                np.array(list(map(len, rows)), np.int32))

    def _tensors(self, token_ids, lengths):
        """Returns the tensors of a batch of `_token_rows`; a row is one segment."""
        mask = tf.range(token_ids.shape[1]) < lengths[:, tf.newaxis]
        known = {'token_ids': token_ids, 'padding_mask': mask, 'segment_ids': tf.zeros_like(token_ids)}
        return {name: part for name, part in known.items() if name in self.input_spec}
