"""Batches of prompts with their responses, or of plain texts, for fine-tuning language models."""

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from lingpipe import hyperparams
from lingpipe.input import text_input, text_records

_PROMPT = '{prompt}'


class InstructionInput(text_records.RecordInput):
    """Prompts with their responses, one pair per row; only tokens that the model has to write enter the loss.

    ::

        token_ids      <s> 2 + 2 = 4 </s> .       prompt '2 + 2 =', response ' 4', padding '.'
        labels         2 + 2 = 4 </s> . .
        weights        0 0 0 0 1 1    0 0
        padding_mask   1 1 1 1 1 1 1  0

    Prompt and response are tokenized separately, as in generation. Responses that are too long are truncated, prompts
    without room for a response are left out, and a warning counts both. A plain text that is too long continues in
    further rows, and all its tokens count once.

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

    def _arrays(self, records):
        p = self.params
        responses = [record.text(p.text_field or p.response_field) for record in records]
        prompts = [self._prompt(record) for record in records]
        pairs = zip(self._tokenized(prompts), self._tokenized(responses), strict=True)
        found = [row for pair in pairs for row in self._rows_of(*pair)]
        num_left_out = 0 if p.text_field else len(records) - len(found)
        num_cut = 0 if p.text_field else sum(len(tokens) > p.sequence_length + 1 for tokens, _ in found)
        if num_cut or num_left_out:
            logging.warning('%s: sequence_length=%d cuts %d responses, and leaves out %d prompts without room for one.',
                            self.source, p.sequence_length, num_cut, num_left_out)
        if not found:
            raise ValueError(f'sequence_length: {p.sequence_length} has no room for any response of {self.source}. '
                             'Raise it.')
        rows = [tokens[:p.sequence_length + 1] for tokens, _ in found]
        tokens = keras.utils.pad_sequences(rows, p.sequence_length + 1, padding='post', value=self.tokenizer.pad_id)
        return tokens, np.array(list(map(len, rows)), np.int32), np.array([shown for _, shown in found], np.int32)

    def _prompt(self, record):
        """Return the prompt of a record; a plain text is a response without a prompt."""
        p = self.params
        return '' if p.text_field else p.prompt_template.replace(_PROMPT, record.text(p.prompt_field))

    def _rows_of(self, prompt, response):
        """Return the tokens of each row of a record, and the number of those that are only shown."""
        shown, length = [*self.tokenizer.start_ids, *prompt], self.params.sequence_length
        tokens = [*shown, *response, self.tokenizer.end_id]
        if self.params.text_field:  # each row begins with the last token of the previous one, so none is lost
            return [(tokens[start:start + length + 1], 1) for start in range(0, len(tokens) - 1, length)]
        return [(tokens, len(shown))] if len(shown) <= length else []

    def _batch(self, tokens, num_tokens, num_shown):
        inputs, labels = tokens[:, :-1], tokens[:, 1:]
        num_tokens, num_shown = num_tokens[:, tf.newaxis], num_shown[:, tf.newaxis]
        places = tf.range(self.params.sequence_length)
        weights = tf.cast((places + 1 >= num_shown) & (places + 1 < num_tokens), tf.float32)
        if self.params.has_padding_mask:
            inputs = {'token_ids': inputs, 'padding_mask': places < num_tokens}
        return inputs, labels, weights, self.tokenizer.num_bytes(labels)

    def _check_params(self):
        super()._check_params()
        if _PROMPT not in self.params.prompt_template:
            raise ValueError(f'prompt_template: {self.params.prompt_template!r} has no {_PROMPT!r}, which stands for '
                             'the prompt. Write it in.')
