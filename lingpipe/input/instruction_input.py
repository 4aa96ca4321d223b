"""Batches of prompts with their responses, or of plain texts, for fine-tuning language models."""

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from lingpipe import hyperparams
from lingpipe.input import record_fields, record_input, text_input

_PROMPT = '{prompt}'


class InstructionInput(record_input.RecordInput):
    """Prompts with their responses, one pair per row; only tokens that the model has to write enter the loss.

    ::

        token_ids      <s> 2 + 2 = 4 </s> .       prompt '2 + 2 =', response ' 4', padding '.'
        labels         2 + 2 = 4 </s> . .
        weights        0 0 0 0 1 1    0 0         times the sample weight
        padding_mask   1 1 1 1 1 1 1  0

    Prompt and response are tokenized separately, as in generation. Responses that are too long are truncated, and a
    warning counts them. A plain text that is too long continues in further rows, and all its tokens count once.

    Everything is tokenized when the input is created.
    """

    example_name = 'rows'

    @classmethod
    def Params(cls) -> hyperparams.InstantiableParams:
        p = super().Params().Set(name='instruction_input')
        p.Define('prompt_field', 'prompt', 'Field of what the model is told, which has loss weight 0.')
        p.Define('response_field', 'response', 'Field of what the model should answer, which has loss weight 1.')
        p.Define('text_field', None, 'Field of a plain text, instead of prompt and response; all of it has loss '
                                     'weight 1.')
        p.Define('prompt_template', _PROMPT, f'What the model is shown for a prompt, which replaces {_PROMPT!r} in it.')
        p.Define('has_padding_mask', True, "Whether inputs are a dictionary of 'token_ids' and a 'padding_mask', as "
                                           'models of KerasHub take them.')
        return p

    InputSpec = staticmethod(text_input.TextInput.InputSpec)
    TargetSpec = staticmethod(text_input.TextInput.TargetSpec)

    @property
    def _fields(self):
        return ('text_field',) if self.params.text_field else ('prompt_field', 'response_field')

    def _row(self, record):
        """Return prompt and response; a plain text is a response without a prompt."""
        p = self.params
        if p.text_field:
            return '', record_fields.text(record, p.text_field)
        prompt = p.prompt_template.replace(_PROMPT, record_fields.text(record, p.prompt_field))
        return prompt, record_fields.text(record, p.response_field)

    def _arrays(self, rows):
        p, self._num_cut = self.params, 0
        places, prompts, responses, sample_weights = zip(*rows)
        tokens = self._tokenized(prompts), self._tokenized(responses)
        records = self._good(zip(places, *tokens, sample_weights, strict=True), self._rows_of)
        if self._num_cut:
            logging.warning('%d responses of %s are cut, since they do not fit into sequence_length=%d.', self._num_cut,
                            p.files or p.dataset, p.sequence_length)
        rows, num_shown, weights = zip(*(row for rows_of_record in records for row in rows_of_record))
        tokens = keras.utils.pad_sequences(rows, p.sequence_length + 1, padding='post', value=self.tokenizer.pad_id)
        lengths = np.array(list(map(len, rows)), np.int32)
        return tokens, lengths, np.array(num_shown, np.int32), np.array(weights, np.float32)

    def _rows_of(self, prompt, response, weight):
        """Return the tokens of each row of a record, the number of those that are only shown, and the weight."""
        shown = [*self.tokenizer.start_ids, *prompt]
        tokens, length = [*shown, *response, self.tokenizer.end_id], self.params.sequence_length
        if len(tokens) < 2:
            raise record_fields.BadRecord(f'field {self.params.text_field!r}: the tokenizer makes nothing of it.')
        if self.params.text_field:  # each row begins with the last token of the previous one, so none is lost
            return [(tokens[start:start + length + 1], 1, weight) for start in range(0, len(tokens) - 1, length)]
        if len(shown) > length:
            raise record_fields.BadRecord(
                f'field {self.params.prompt_field!r}: its {len(shown)} tokens leave no room for a response in '
                f'sequence_length={length}. Raise sequence_length.')
        self._num_cut += len(tokens) > length + 1
        return [(tokens[:length + 1], len(shown), weight)]

    def _batch(self, columns, visits):
        tokens, num_tokens, num_shown, weights = (column[:, tf.newaxis] for column in columns)
        inputs, labels = tokens[:, 0, :-1], tokens[:, 0, 1:]
        places = tf.range(self.params.sequence_length)
        weights *= tf.cast((places + 1 >= num_shown) & (places + 1 < num_tokens), tf.float32)
        if self.params.has_padding_mask:
            inputs = {'token_ids': inputs, 'padding_mask': places < num_tokens}
        return inputs, labels, weights, self.tokenizer.num_bytes(labels)

    def _check_params(self):
        super()._check_params()
        if _PROMPT not in self.params.prompt_template:
            raise ValueError(f'prompt_template: {self.params.prompt_template!r} has no {_PROMPT!r}, which stands for '
                             'the prompt. Write it in.')
