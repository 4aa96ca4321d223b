"""Batches of sources and their targets, for the sequence-to-sequence models of KerasHub."""

import numpy as np
import tensorflow as tf
from absl import logging

from lingpipe import hyperparams
from lingpipe.input import text_records

_SIDES = ('encoder', 'decoder')


class SequenceToSequenceInput(text_records.RecordInput):
    """Pairs of texts, made into tensors by the KerasHub preprocessor for the tokenizer, such as BART's::

        encoder_token_ids   <s> forty - two </s> <pad>     the source
        decoder_token_ids   </s> <s> 4 2 </s> <pad>        the token before each label
        labels              <s> 4 2 </s> <pad> <pad>
        weights             1 1 1 1 0 0

    Texts that are too long are truncated, and warnings say how many fill their rows. Everything is tokenized when the
    input is created.
    """

    example_name = 'pairs'
    _fields = 'source_field', 'target_field'

    @classmethod
    def Params(cls) -> hyperparams.InstantiableParams:
        """Return the InstantiableParams of this input, whose `sequence_length` is that of sources."""
        p = super().Params().Set(name='sequence_to_sequence_input')
        p.Define('source_field', 'source', 'Field of the text that the model reads.')
        p.Define('target_field', 'target', 'Field of the text that it should write.')
        p.Define('target_length', None, 'Number of tokens in a row of targets; None: as in one of sources.')
        return p

    @staticmethod
    def InputSpec(params: hyperparams.Params) -> dict[str, tf.TensorSpec]:
        """Return the dictionary of the inputs' `tf.TensorSpec`s, each `[batch_size, length]`; read no records."""
        shapes = {side: [params.batch_size, length] for side, length in zip(_SIDES, _lengths(params))}
        return {f'{side}_{name}': tf.TensorSpec(shape, dtype) for side, shape in shapes.items()
                for name, dtype in (('padding_mask', tf.bool), ('token_ids', tf.int32))}

    @staticmethod
    def TargetSpec(params: hyperparams.Params) -> tuple[tf.TensorSpec, ...]:
        """Return the `tf.TensorSpec` of labels, weights and byte counts `[batch_size, length]`; read no records."""
        shape = [params.batch_size, _lengths(params)[1]]
        return tuple(tf.TensorSpec(shape, dtype) for dtype in (tf.int32, tf.float32, tf.float32))

    def _arrays(self, records):
        """Return the tensors of `input_spec`, then labels and weights, `[n, length]` each."""
        p = self.params
        source_length, target_length = _lengths(p)
        preprocessor = self.tokenizer.preprocessor(
            'Seq2SeqLMPreprocessor', encoder_sequence_length=source_length, decoder_sequence_length=target_length)
        sources, targets = ([record.text(field) for record in records] for field in (p.source_field, p.target_field))
        inputs, labels, mask = text_records.by_pieces(lambda some: preprocessor(
            {'encoder_text': sources[some], 'decoder_text': targets[some]}), len(records))
        for side, is_token in (('sources', inputs['encoder_padding_mask']), ('targets', mask)):
            num_full = np.count_nonzero(is_token.all(1))
            if num_full:
                logging.warning('%d %s of %s fill all %d tokens of a row, and what does not fit is cut off.',
                                num_full, side, self.source, is_token.shape[1])
        return *(inputs[name] for name in self.input_spec), labels, mask.astype(np.float32)

    def _batch(self, *columns):
        *inputs, labels, weights = columns
        inputs = {name: tf.cast(part, spec.dtype) for (name, spec), part in zip(self.input_spec.items(), inputs)}
        return inputs, labels, weights, self.tokenizer.num_bytes(labels)

    def _check_params(self):
        super()._check_params()
        if self.params.target_length is not None:
            self._check_at_least(target_length=1)
        cls = self.params.tokenizer.cls
        if not hasattr(cls, 'preprocessor'):
            raise ValueError(f'tokenizer: {cls.__name__} belongs to no sequence-to-sequence model of KerasHub. Set it '
                             'to the params of a KerasHubTokenizer, or of a BytePairTokenizer with '
                             "keras_hub_class='BartTokenizer'.")


def _lengths(params):
    return params.sequence_length, params.target_length or params.sequence_length
