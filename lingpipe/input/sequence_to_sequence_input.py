"""Batches of sources and their targets, for the sequence-to-sequence models of KerasHub."""

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from absl import logging

from lingpipe import hyperparams
from lingpipe.input import record_fields, record_input

_SIDES = ('encoder', 'decoder')


class _Pair(NamedTuple):
    """A record: the source, the target, and the sample weight."""

    source: str
    target: str
    weight: float


class SequenceToSequenceInput(record_input.RecordInput):
    """Pairs of texts, made into tensors by the KerasHub preprocessor for the tokenizer, such as BART's::

        encoder_token_ids   <s> forty - two </s> <pad>     the source
        decoder_token_ids   </s> <s> 4 2 </s> <pad>        the token before each label
        labels              <s> 4 2 </s> <pad> <pad>
        weights             1 1 1 1 0 0                    times the sample weight

    Texts that are too long are truncated, and the log says how many are. Everything is tokenized when the input is
    created.

    Attributes:
        input_spec: dictionary of the `tf.TensorSpec` of the tensors that the preprocessor makes.
        example_name: word for an example.
        preprocessor: the KerasHub preprocessor.
    """

    example_name = 'pairs'

    @classmethod
    def Params(cls) -> hyperparams.InstantiableParams:
        """Returns the InstantiableParams of this input, whose `sequence_length` is that of sources."""
        p = super().Params().Set(name='sequence_to_sequence_input')
        p.Define('source_field', 'source', 'Field of the text that the model reads.')
        p.Define('target_field', 'target', 'Field of the text that it should write.')
        p.Define('target_length', None, 'Number of tokens in a row of targets; None: as in one of sources.')
        return p

    @staticmethod
    def InputSpec(params: hyperparams.Params) -> dict[str, tf.TensorSpec]:
        """Returns the dictionary of the `tf.TensorSpec` `[batch_size, length]` of a batch; reads no records.

        Args:
            params: `SequenceToSequenceInput.Params()`.
        """
        shapes = {side: [params.batch_size, length] for side, length in zip(_SIDES, _lengths(params))}
        return {f'{side}_{name}': tf.TensorSpec(shape, dtype) for side, shape in shapes.items()
                for name, dtype in (('padding_mask', tf.bool), ('token_ids', tf.int32))}

    @staticmethod
    def TargetSpec(params: hyperparams.Params) -> tuple[tf.TensorSpec, ...]:
        """Returns the `tf.TensorSpec` of labels, weights and byte counts `[batch_size, length]`; reads no records."""
        shape = [params.batch_size, _lengths(params)[1]]
        return tuple(tf.TensorSpec(shape, dtype) for dtype in (tf.int32, tf.float32, tf.float32))

    def __init__(self, params: hyperparams.Params) -> None:
        super().__init__(params)
        p = self.params
        self.input_spec = self.InputSpec(p)
        self.preprocessor = preprocessor_of(self.tokenizer, p)
        pairs = [pair for _, pair in self._read([p.source_field, p.target_field, p.weight_field], self._pair)]
        self._warn_of_bad_records()
        with tf.device('CPU:0'):
            self._columns = tuple(map(tf.constant, self._arrays(pairs)))

    def _pair(self, record):
        p = self.params
        return _Pair(record_fields.text(record, p.source_field), record_fields.text(record, p.target_field),
                     record_fields.weight(record, p.weight_field))

    def _arrays(self, pairs):
        """Returns the tensors of `input_spec`, then labels, weights and byte counts, `[n, length]` each."""
        inputs, labels, mask = self._preprocessed(pairs)
        targets = _Texts([pair.target for pair in pairs], labels, mask, self.tokenizer, self.preprocessor)
        sources = _Texts([pair.source for pair in pairs], inputs['encoder_token_ids'], inputs['encoder_padding_mask'],
                         self.tokenizer, self.preprocessor)
        for side, length, texts in zip(('sources', 'targets'), _lengths(self.params), (sources, targets)):
            if texts.num_cut:
                logging.warning('%d %s of %s are cut, since they do not fit into %d tokens.', texts.num_cut, side,
                                self.params.files or self.params.dataset, length)
        weights = mask * np.array([[pair.weight] for pair in pairs], np.float32)
        return *(inputs[name] for name in self.input_spec), labels, weights, targets.num_bytes()

    def _preprocessed(self, pairs):
        """Returns the dictionary of inputs, the labels, and whether each label is not padding, arrays `[n, length]`."""
        sources, targets, _ = map(list, zip(*pairs))
        return record_input.by_pieces(lambda rows: self.preprocessor(
            {'encoder_text': sources[rows], 'decoder_text': targets[rows]}), len(pairs))

    def _batch(self, columns, is_row):
        *inputs, labels, weights, num_bytes = columns
        inputs = {name: tf.cast(part, spec.dtype) for (name, spec), part in zip(self.input_spec.items(), inputs)}
        return inputs, labels, weights * tf.cast(is_row, tf.float32)[:, tf.newaxis], num_bytes

    def _check_params(self):
        super()._check_params()
        if self.params.target_length is not None:
            self._check_at_least(target_length=1)


def preprocessor_of(tokenizer: Any, params: hyperparams.Params) -> Any:
    """Returns the KerasHub preprocessor of a tokenizer for an input's lengths.

    Args:
        tokenizer: tokenizer of the input.
        params: `SequenceToSequenceInput.Params()`.

    Raises:
        ValueError: the tokenizer does not belong to a sequence-to-sequence model.
    """
    if not hasattr(tokenizer, 'seq_2_seq_preprocessor'):
        raise ValueError(f'tokenizer: {type(tokenizer).__name__} belongs to no sequence-to-sequence model of KerasHub. '
                         'Set it to the params of a KerasHubTokenizer, or of a BytePairTokenizer with '
                         "keras_hub_class='BartTokenizer'.")
    return tokenizer.seq_2_seq_preprocessor(*_lengths(params))


def _lengths(params):
    return params.sequence_length, params.target_length or params.sequence_length


class _Texts:
    """The texts of one side, compared with the tokens of their rows.

    Args:
        texts: list of n texts.
        tokens: integer array `[n, length]`.
        mask: boolean array `[n, length]`, False at padding.
        tokenizer: tokenizer of the input.
        preprocessor: the KerasHub preprocessor, whose special tokens have no text.

    Attributes:
        num_cut: number of texts with more tokens than their rows.
    """

    def __init__(self, texts, tokens, mask, tokenizer, preprocessor):
        special = preprocessor.tokenizer.special_token_ids
        self._texts, self._is_text = texts, mask & ~np.isin(tokens, special)
        self._is_end = mask & (tokens == preprocessor.tokenizer.end_token_id)
        counts = self._is_text.sum(1)
        self._num_tokens = counts.copy()
        for row in np.flatnonzero(mask.all(1)):
            self._num_tokens[row] = len(tokenizer.encode(tf.constant(texts[row])))
        self.num_cut = np.count_nonzero(self._num_tokens > counts)

    def num_bytes(self):
        """Returns float32 `[n, length]`: each token has an equal part of the bytes of its text, and the end has one."""
        sizes = np.array([len(text.encode()) for text in self._texts]) / np.maximum(1, self._num_tokens)
        return (self._is_text * sizes[:, np.newaxis] + self._is_end).astype(np.float32)
