"""Batches of prompts with their responses, or of plain texts, for fine-tuning language models."""

import bisect
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from absl import logging

from lingpipe import hyperparams
from lingpipe.input import record_fields, record_input

_PROMPT = '{prompt}'


class _Text(NamedTuple):
    """A record: prompt, response and sample weight; a plain text is a response without a prompt."""

    prompt: str
    response: str
    weight: float


class _Example(NamedTuple):
    """Tokens `[n]`, and for each token the weight of its loss and its number of bytes."""

    tokens: np.ndarray
    weights: np.ndarray
    num_bytes: np.ndarray


class InstructionInput(record_input.RecordInput):
    """Prompts with their responses, one per row or several in a row; only tokens that the model has to write count.

    ::

        token_ids      <s> 2 + 2 = 4 </s> .       prompt '2 + 2 =', response ' 4', padding '.'
        labels         2 + 2 = 4 </s> . .
        weights        0 0 0 0 1 1    0 0         times the sample weight
        padding_mask   1 1 1 1 1 1 1  0

    Prompt and response are tokenized separately, as in generation. A response that is too long is truncated, and the
    log says how many are. A plain text that is too long continues in further rows, and all its tokens count once.

    Everything is tokenized when the input is created. Which examples share a packed row does not depend on the epoch.

    Attributes:
        input_spec: `{'token_ids', 'padding_mask'}`, `tf.TensorSpec` `[batch_size, sequence_length]`, int32 and bool, or
            only that of the tokens.
        example_name: word for an example.
    """

    example_name = 'rows'

    @classmethod
    def Params(cls) -> hyperparams.InstantiableParams:
        """Returns the InstantiableParams of this input; see `RecordInput.Params`."""
        p = super().Params().Set(name='instruction_input')
        p.Define('prompt_field', 'prompt', 'Field of what the model is told, which has loss weight 0.')
        p.Define('response_field', 'response', 'Field of what the model should answer, which has loss weight 1.')
        p.Define('text_field', None, 'Field of a plain text, in place of prompt and response; all of it has loss '
                                     'weight 1.')
        p.Define('prompt_template', _PROMPT, f'What the model is shown for a prompt, which replaces {_PROMPT!r} in it.')
        p.Define('packed', False, 'Whether several examples share a row, which wastes less. Each sees those before it '
                                  "in its row, since KerasHub's models know no borders: results differ from those of "
                                  'padded rows.')
        p.Define('has_padding_mask', True, "Whether inputs are a dictionary of 'token_ids' and a 'padding_mask', as "
                                           'models of KerasHub take them.')
        return p

    @staticmethod
    def InputSpec(params: hyperparams.Params) -> Any:
        """Returns the `tf.TensorSpec` of a batch of tokens, or the dictionary with that of its mask; reads no records.

        Args:
            params: `InstructionInput.Params()`.
        """
        tokens = tf.TensorSpec([params.batch_size, params.sequence_length], tf.int32)
        if not params.has_padding_mask:
            return tokens
        return {'token_ids': tokens, 'padding_mask': tf.TensorSpec(tokens.shape, tf.bool)}

    @staticmethod
    def TargetSpec(params: hyperparams.Params) -> tuple[tf.TensorSpec, ...]:
        """Returns the `tf.TensorSpec` of labels, weights and byte counts `[batch_size, length]`; reads no records."""
        shape = [params.batch_size, params.sequence_length]
        return tuple(tf.TensorSpec(shape, dtype) for dtype in (tf.int32, tf.float32, tf.float32))

    def __init__(self, params: hyperparams.Params) -> None:
        super().__init__(params)
        p = self.params
        self.input_spec = self.InputSpec(p)
        fields = [p.text_field] if p.text_field else [p.prompt_field, p.response_field]
        rows = self._tokenized(self._read([*fields, p.weight_field], self._text_of))
        self._num_cut = 0
        examples = [example for part in self._good(rows, lambda row: row[0], self._examples) for example in part]
        self._warn_of_bad_records()
        if self._num_cut:
            logging.warning('%d responses of %s are cut, since they do not fit into sequence_length=%d.', self._num_cut,
                            p.files or p.dataset, p.sequence_length)
        with tf.device('CPU:0'):
            self._columns = tuple(map(tf.constant, self._rows(examples)))

    def _text_of(self, record):
        p = self.params
        weight = record_fields.weight(record, p.weight_field)
        if p.text_field:
            return _Text('', record_fields.text(record, p.text_field), weight)
        prompt = p.prompt_template.replace(_PROMPT, record_fields.text(record, p.prompt_field))
        return _Text(prompt, record_fields.text(record, p.response_field), weight)

    def _tokenized(self, records):
        """Yields the place of each record, its text, and the tokens of prompt and response."""
        encode = self.tokenizer.encode
        texts = tf.data.Dataset.from_tensor_slices(([text.prompt for _, text in records],
                                                    [text.response for _, text in records]))
        tokens = texts.map(lambda prompt, response: (encode(prompt), encode(response)),
                           num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
        for (place, text), (prompt, response) in zip(records, tokens.as_numpy_iterator()):
            yield place, text, prompt, response

    def _examples(self, row):
        """Returns the examples of a record: one, or the pieces of a long plain text."""
        _, text, prompt, response = row
        length, example = self.params.sequence_length, self._whole_example(text, prompt, response)
        num_tokens, num_before = len(example.tokens), len(self.tokenizer.start_ids) + len(prompt)
        if num_tokens < 2:
            raise record_fields.BadRecord(f'field {self.params.text_field!r}: the tokenizer makes nothing of it.')
        if self.params.text_field:  # each piece begins with the last token of the previous one, so none is lost
            return [_piece(example, start, length + 1) for start in range(0, num_tokens - 1, length)]
        if num_before > length:
            raise record_fields.BadRecord(
                f'field {self.params.prompt_field!r}: its {num_before} tokens leave no room for a response in '
                f'sequence_length={length}. Raise sequence_length.')
        self._num_cut += num_tokens > length + 1
        return [_piece(example, 0, length + 1)]

    def _whole_example(self, text, prompt, response):
        start, end = list(self.tokenizer.start_ids), [self.tokenizer.end_id]
        num_before = len(start) + len(prompt)
        bytes_each = len(text.response.encode()) / max(1, len(response))
        return _Example(
            np.array([*start, *prompt, *response, *end], np.int32),
            np.array([0.0] * num_before + [text.weight] * (len(response) + 1), np.float32),
            np.array([0.0] * num_before + [bytes_each] * len(response) + [1.0], np.float32))

    def _rows(self, examples):
        """Returns tokens `[n, length + 1]`, weights and byte counts of the labels `[n, length]`, used lengths `[n]`."""
        capacity = self.params.sequence_length + 1
        rows = [[number] for number in range(len(examples))]
        if self.params.packed:
            rows = best_fit([len(example.tokens) for example in examples], capacity)
        tokens = np.full([len(rows), capacity], self.tokenizer.pad_id, np.int32)
        weights, num_bytes = np.zeros([2, len(rows), capacity], np.float32)
        used = np.zeros([len(rows)], np.int32)
        for row, numbers in enumerate(rows):
            parts = [np.concatenate(part) for part in zip(*(examples[number] for number in numbers))]
            used[row] = len(parts[0])
            for whole, part in zip((tokens, weights, num_bytes), parts):
                whole[row, :used[row]] = part
        return tokens, weights[:, 1:], num_bytes[:, 1:], used

    def _batch(self, columns, is_row):
        tokens, weights, num_bytes, used = columns
        weights *= tf.cast(is_row, tf.float32)[:, tf.newaxis]
        inputs = tokens[:, :-1]
        if self.params.has_padding_mask:
            mask = tf.range(self.params.sequence_length) < used[:, tf.newaxis]
            inputs = {'token_ids': inputs, 'padding_mask': mask}
        return inputs, tokens[:, 1:], weights, num_bytes

    def _check_params(self):
        super()._check_params()
        if _PROMPT not in self.params.prompt_template:
            raise ValueError(f'prompt_template: {self.params.prompt_template!r} has no {_PROMPT!r}, which stands for '
                             'the prompt. Write it in.')


def _piece(example, start, size):
    """Returns some tokens of an example; the first one is only shown, because its context is missing."""
    tokens, weights, num_bytes = (part[start:start + size].copy() for part in example)
    weights[0] = 0.0
    return _Example(tokens, weights, num_bytes)


def best_fit(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Packs examples, the longest first, each into the row in which it leaves the least space.

    Best-fit decreasing needs at most 11/9 of the fewest rows possible, plus 4 (Johnson et al. 1974, "Worst-case
    performance bounds for simple one-dimensional packing algorithms").

    Args:
        lengths: number of tokens of each example, at most `capacity`.
        capacity: number of tokens in a row.

    Returns:
        The numbers of the examples of each row, ascending; rows in the order of their first example.
    """
    rows: list[list[int]] = []
    spaces: list[tuple[int, int]] = []  # (space, number of the row), ascending
    for number in sorted(range(len(lengths)), key=lambda number: -lengths[number]):
        place = bisect.bisect_left(spaces, (lengths[number], 0))
        space, row = spaces.pop(place) if place < len(spaces) else (capacity, len(rows))
        if row == len(rows):
            rows.append([])
        rows[row].append(number)
        bisect.insort(spaces, (space - lengths[number], row))
    return sorted(sorted(row) for row in rows)
