"""Batches of texts in which some tokens are masked, for the masked language models of KerasHub."""

import math

import numpy as np
import tensorflow as tf

from lingpipe import hyperparams
from lingpipe.input import record_fields, record_input

_MASK_TOKEN_RATE, _RANDOM_TOKEN_RATE = 0.8, 0.1  # BERT's, and the defaults of KerasHub


class MaskedLMInput(record_input.EncoderInput):
    """Texts in rows; some of their tokens are to be predicted from those around them (BERT, arXiv 1810.04805, 3.1).

    ::

        token_ids        <s> The <mask> fox jumped high . </s> <pad>
        mask_positions   2 4 0        here 'jumped' is one of the tokens that are to be predicted, but are shown
        labels           brown jumped 0
        weights          1 1 0        times the sample weight

    Of the chosen tokens, four fifths become the mask token, a tenth become any token, and a tenth stay, as by
    `keras_hub.layers.MaskedLMMaskGenerator`, which takes no seed. Masks are drawn at every visit and depend only on
    (seed, position), so that training resumes with the same masks as without a stop. Evaluation always has the same
    masks. A text that is too long continues in further rows.
    """

    example_name = 'rows'
    _fields = 'text_field',

    @classmethod
    def Params(cls) -> hyperparams.InstantiableParams:
        p = super().Params().Set(name='masked_lm_input')
        p.Define('text_field', 'text', 'Field of the text.')
        p.Define('mask_rate', 0.15, 'Fraction of the tokens of a row that the model has to predict, rounded up.')
        return p

    @staticmethod
    def InputSpec(params: hyperparams.Params) -> dict[str, tf.TensorSpec]:
        """Return the dictionary of the `tf.TensorSpec`s of a batch; read no records."""
        positions = tf.TensorSpec([params.batch_size, _num_masks(params)], tf.int32)
        return {**record_input.EncoderInput.InputSpec(params), 'mask_positions': positions}

    @staticmethod
    def TargetSpec(params: hyperparams.Params) -> tuple[tf.TensorSpec, tf.TensorSpec]:
        """Return the `tf.TensorSpec`s of labels and of weights, both `[batch_size, masks]`; read no records."""
        shape = [params.batch_size, _num_masks(params)]
        return tf.TensorSpec(shape, tf.int32), tf.TensorSpec(shape, tf.float32)

    def _prepare(self):
        special = self.tokenizer.keras_hub_tokenizer()
        self._mask_id, self._special_ids = special.mask_token_id, tf.constant(special.special_token_ids)

    def _row(self, record):
        return record_fields.text(record, self.params.text_field),

    def _arrays(self, rows):
        places, texts, weights = zip(*rows)
        room, kept = self._room, self._good(zip(places, self._tokenized(texts), weights), self._checked)
        parts, weights = zip(*((tokens[start:start + room], weight) for tokens, weight in kept
                               for start in range(0, len(tokens), room)))
        return *self._token_rows(parts), np.array(weights, np.float32)

    def _checked(self, tokens, weight):
        if not len(tokens):
            raise record_fields.BadRecord(f'field {self.params.text_field!r}: the tokenizer makes nothing of it.')
        return tokens, weight

    def _batch(self, columns, visits):
        tokens, lengths, sample_weights = columns
        shown, positions, labels, weights = self._masked(tokens, visits)
        tensors = {**self._tensors(shown, lengths), 'mask_positions': positions}
        return tensors, labels, weights * sample_weights[:, tf.newaxis]

    def _masked(self, tokens, visits):
        """Return rows with masks drawn from (seed, visit), and positions, labels and weights `[batch, masks]`."""
        length, num_masks = tokens.shape[1], _num_masks(self.params)
        place, kind, other = tf.unstack(tf.map_fn(
            lambda visit: tf.random.stateless_uniform([3, length], tf.stack([self.params.seed, visit])),
            visits, fn_output_signature=tf.TensorSpec([3, length])), axis=1)
        is_text = tf.reduce_all(tokens[..., tf.newaxis] != self._special_ids, -1)
        num_chosen = tf.math.ceil(self.params.mask_rate * tf.reduce_sum(tf.cast(is_text, tf.float32), 1))
        rank = tf.argsort(tf.argsort(tf.where(is_text, place, 1.0)))  # draws are below 1
        is_chosen = rank < tf.minimum(tf.cast(num_chosen, tf.int32), num_masks)[:, tf.newaxis]
        any_token = tf.cast(other * self.tokenizer.vocab_size, tf.int32)
        kept = tf.where(kind < _MASK_TOKEN_RATE + _RANDOM_TOKEN_RATE, any_token, tokens)
        shown = tf.where(is_chosen, tf.where(kind < _MASK_TOKEN_RATE, self._mask_id, kept), tokens)
        positions = tf.sort(tf.where(is_chosen, tf.range(length), length))[:, :num_masks]
        is_mask = positions < length
        positions = tf.where(is_mask, positions, 0)
        labels = tf.where(is_mask, tf.gather(tokens, positions, batch_dims=1), 0)
        return shown, positions, labels, tf.cast(is_mask, tf.float32)

    def _check_params(self):
        super()._check_params()
        rate = self.params.mask_rate
        if not 0 < rate <= 1:
            raise ValueError(f'mask_rate: {rate!r} is not allowed. Set it to a number above 0 and of at most 1, such '
                             'as 0.15.')


def _num_masks(params):
    return max(1, math.ceil(params.mask_rate * (params.sequence_length - 2)))
