"""Batches of texts in which some tokens are masked, for the masked language models of KerasHub."""

import math
from typing import Any

import numpy as np
import tensorflow as tf

from lingpipe import hyperparams
from lingpipe.input import base_input, batch_share, encoder_rows, record_fields, record_input, row_order

_LAST_POSITION = np.iinfo(np.int64).max
_TRAINING, _EVALUATION = 0, 1  # the purposes of masks
_MASK_TOKEN_RATE, _RANDOM_TOKEN_RATE = 0.8, 0.1  # BERT's, and the defaults of KerasHub


class MaskedLMInput(record_input.RecordInput):
    """Texts in rows; some of their tokens are to be predicted from those around them (BERT, arXiv 1810.04805, 3.1).

    ::

        token_ids        <s> The <mask> fox jumped high . </s> <pad>
        mask_positions   2 4 0        here 'jumped' is one of the tokens that are to be predicted, but are shown
        labels           brown jumped 0
        weights          1 1 0        times the sample weight

    Masks are those of `keras_hub.layers.MaskedLMMaskGenerator`, by `tensorflow_text.mask_language_model`: four fifths
    are the mask token, a tenth are any token, and a tenth are the token itself. They are drawn at every visit and
    depend only on (seed, position), so that training resumes with the same masks as without a stop. Evaluation always
    has the same masks. A text that is too long continues in further rows.

    Attributes:
        input_spec: dictionary of the `tf.TensorSpec` of the tensors that the model takes.
        example_name: word for an example.
    """

    example_name = 'rows'

    @classmethod
    def Params(cls) -> hyperparams.InstantiableParams:
        """Returns the InstantiableParams of this input; see `RecordInput.Params`."""
        p = super().Params().Set(name='masked_lm_input')
        p.Define('text_field', 'text', 'Field of the text.')
        p.Define('mask_rate', 0.15, 'Fraction of the tokens of a row that the model has to predict, rounded up.')
        return p

    @staticmethod
    def InputSpec(params: hyperparams.Params) -> dict[str, tf.TensorSpec]:
        """Returns the dictionary of the `tf.TensorSpec` of a batch; reads no records.

        Args:
            params: `MaskedLMInput.Params()`.
        """
        positions = tf.TensorSpec([params.batch_size, _num_masks(params)], tf.int32)
        return {**encoder_rows.specs(params), 'mask_positions': positions}

    @staticmethod
    def TargetSpec(params: hyperparams.Params) -> tuple[tf.TensorSpec, tf.TensorSpec]:
        """Returns the pair of the `tf.TensorSpec` of labels and weights `[batch_size, masks]`; reads no records."""
        shape = [params.batch_size, _num_masks(params)]
        return tf.TensorSpec(shape, tf.int32), tf.TensorSpec(shape, tf.float32)

    def __init__(self, params: hyperparams.Params) -> None:
        super().__init__(params)
        p = self.params
        self.input_spec = self.InputSpec(p)
        self._encoder_spec = encoder_rows.specs(p)
        self._masking = _Masking(self.tokenizer, p.mask_rate, _num_masks(p))
        rows = encoder_rows.EncoderRows(self.tokenizer, p.sequence_length)
        texts = self._tokenized(self._read([p.text_field, p.weight_field], self._text))
        kept = self._good(texts, lambda row: row[0], self._checked)
        self._warn_of_bad_records()
        pieces = [(tokens[start:start + rows.room], weight) for tokens, weight in kept
                  for start in range(0, len(tokens), rows.room)]
        parts, weights = zip(*pieces)
        with tf.device('CPU:0'):
            self._columns = (tf.constant(rows.tokens(parts)), tf.constant(rows.lengths(parts)),
                             tf.constant(weights, tf.float32))

    @base_input.without_autograph
    def training_dataset(self, position: int = 0, share: batch_share.Share = batch_share.WHOLE) -> tf.data.Dataset:
        """Returns endless batches from row number `position` on; see `RecordInput.training_dataset`."""
        size = self.params.batch_size
        positions = share.of(tf.data.Dataset.range(position, _LAST_POSITION), size).batch(share.size(size))
        return self._masked(super().training_dataset(position, share), positions, _TRAINING)

    @base_input.without_autograph
    def evaluation_dataset(self) -> tf.data.Dataset:
        """Returns every row once; see `RecordInput.evaluation_dataset`."""
        numbers = row_order.padded(self.num_examples, self.params.batch_size)
        return self._masked(super().evaluation_dataset(), numbers, _EVALUATION)

    def _text(self, record):
        p = self.params
        return record_fields.text(record, p.text_field), record_fields.weight(record, p.weight_field)

    def _tokenized(self, records):
        """Yields the place, the tokens and the weight of each record."""
        texts = tf.data.Dataset.from_tensor_slices([text for _, (text, _) in records])
        tokens = base_input.parallel_map(texts, self.tokenizer.encode, None).as_numpy_iterator()
        return ((place, found, weight) for (place, (_, weight)), found in zip(records, tokens))

    def _checked(self, row):
        _, tokens, weight = row
        if not len(tokens):
            raise record_fields.BadRecord(f'field {self.params.text_field!r}: the tokenizer makes nothing of it.')
        return tokens, weight

    def _batch(self, columns, is_row):
        tokens, lengths, weights = columns
        return tokens, lengths, weights * tf.cast(is_row, tf.float32)

    def _masked(self, batches, numbers, purpose):
        """Masks batches of rows, each with its own number."""
        seed = [self.params.seed, purpose]

        def masked(batch, numbers):
            tokens, lengths, sample_weights = batch
            shown, positions, labels, weights = self._masking.of_rows(tokens, numbers, seed)
            inputs = encoder_rows.inputs(self._encoder_spec, shown, lengths)
            return {**inputs, 'mask_positions': positions}, labels, weights * sample_weights[:, tf.newaxis]

        return self._finish(base_input.parallel_map(tf.data.Dataset.zip(batches, numbers), masked, None))

    def _check_params(self):
        super()._check_params()
        rate = self.params.mask_rate
        if not 0 < rate <= 1:
            raise ValueError(f'mask_rate: {rate!r} is not allowed. Set it to a number above 0 and of at most 1, such '
                             'as 0.15.')


def _num_masks(params):
    return max(1, math.ceil(params.mask_rate * (params.sequence_length - 2)))


class _Masking:
    """Draws masks from given seeds; KerasHub's layer draws them from TensorFlow's own generators.

    Args:
        tokenizer: tokenizer of the input, of KerasHub's kind.
        rate: part of the tokens of a row.
        num_masks: largest number of masks in a row.
    """

    def __init__(self, tokenizer: Any, rate: float, num_masks: int) -> None:
        import tensorflow_text as text  # takes a second, and only this input needs it

        special = tokenizer.keras_hub_tokenizer()
        self._text, self._rate, self._num_masks = text, rate, num_masks
        self._vocab_size, self._mask_id = tokenizer.vocab_size, special.mask_token_id
        self._special_ids = list(special.special_token_ids)

    def of_rows(self, tokens: tf.Tensor, numbers: tf.Tensor, seed: list[int]) -> tuple[tf.Tensor, ...]:
        """Masks rows, each separately.

        Args:
            tokens: int32 `[batch, length]`.
            numbers: int64 `[batch]`; the masks of a row depend on its number and the seed.
            seed: two integers.

        Returns:
            Tokens `[batch, length]` with masks; positions and tokens to predict, int32 `[batch, num_masks]`, 0 if there
            are none; their weights, float32 of that shape.
        """
        def of_row(row):
            tokens, number = row
            return self._of_row(tokens, tf.random.split(tf.random.fold_in(tf.constant(seed, tf.int64), number), 3))

        masks = tf.TensorSpec([self._num_masks], tf.int32)
        return tf.map_fn(of_row, (tokens, numbers), fn_output_signature=(
            tf.TensorSpec(tokens.shape[1:], tf.int32), masks, masks, tf.TensorSpec([self._num_masks], tf.float32)))

    def _of_row(self, tokens, seeds):
        selector = self._text.RandomItemSelector(
            self._num_masks, self._rate, self._special_ids,
            shuffle_fn=lambda places: tf.random.experimental.stateless_shuffle(places, seeds[0]))
        shown, positions, labels = self._text.mask_language_model(
            tf.RaggedTensor.from_tensor(tokens[tf.newaxis]), selector, self._chooser(seeds[1:]))
        weights = tf.sequence_mask(positions.row_lengths()[0], self._num_masks, tf.float32)
        return tf.ensure_shape(shown.values, tokens.shape), self._filled(positions), self._filled(labels), weights

    def _filled(self, ragged):
        return tf.cast(ragged.to_tensor(shape=[1, self._num_masks])[0], tf.int32)

    def _chooser(self, seeds):
        class Chooser(self._text.MaskValuesChooser):
            """Chooses as its base class does, with these seeds."""

            def get_mask_values(self, masked_lm_ids):
                ids = masked_lm_ids.flat_values
                any_token = tf.random.stateless_uniform(
                    tf.shape(ids), seeds[0], maxval=self.vocab_size, dtype=ids.dtype)
                draw = tf.random.stateless_uniform(tf.shape(ids), seeds[1])
                kept = tf.where(draw < _MASK_TOKEN_RATE + _RANDOM_TOKEN_RATE, any_token, ids)
                return masked_lm_ids.with_flat_values(
                    tf.where(draw < _MASK_TOKEN_RATE, tf.cast(self.mask_token, ids.dtype), kept))

        return Chooser(self._vocab_size, self._mask_id, _MASK_TOKEN_RATE, _RANDOM_TOKEN_RATE)
