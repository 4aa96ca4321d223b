"""The base classes of inputs of text records: reading records, skipping bad ones, and rows for encoders."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from lingpipe import hyperparams
from lingpipe.input import base_input, hub_tokenizer, record_fields, text_records

_ON_BAD_RECORDS = ('raise', 'skip')
_NUM_NAMED = 5
_ROWS_AT_ONCE = 1024


def by_pieces(function: Callable[[slice], Any], count: int) -> Any:
    """Call a function for some rows at a time, and concatenate the nests of arrays `[rows, ...]` that it returns.

    In this way KerasHub's preprocessors run on Python strings. Tracing them takes seconds, and makes them no faster.
    """
    pieces = [function(slice(start, start + _ROWS_AT_ONCE)) for start in range(0, count, _ROWS_AT_ONCE)]
    return tf.nest.map_structure(lambda *parts: np.concatenate(parts), *pieces)


class RecordInput(base_input.MemoryInput):
    """Records of texts from files or TFDS, which are read and checked when the input is created, and stay in memory.

    A subclass defines: `_fields`, the params such as 'text_field' whose values name fields of a record; `_row(record)`,
    which checks those fields of the record and returns a tuple; `_arrays(rows)`, which stacks the tuples (place, *row,
    sample weight) into arrays, one per column; and `_batch`, as every `MemoryInput` does. `_prepare()` is called before
    any record is read.
    """

    _fields: tuple[str, ...] = ()
    _row: Callable[[text_records.Record], tuple]
    _arrays: Callable[[list[tuple]], tuple]

    @classmethod
    def Params(cls) -> hyperparams.InstantiableParams:
        """Return the InstantiableParams of this input; set either `files` or `dataset`."""
        p = super().Params().Set(batch_size=16)
        p.Define('files', None, "Path of a file ('.jsonl', '.csv', '.tsv', '.txt'), of a folder with a folder of text "
                                'files for each class, a pattern such as "data/*.jsonl", or a list of them; None: the '
                                'TFDS dataset.')
        p.Define('format', None, f'Format of files: one of {text_records.FORMATS}; None: by their endings.')
        p.Define('weight_field', None, 'Field of the sample weight, which multiplies the weights of the loss; None: 1.')
        p.Define('bad_records', 'raise', "'raise' ends with the name of the first bad record; 'skip' leaves bad "
                                         'records out, and warns how many.')
        p.Define('tokenizer', hub_tokenizer.KerasHubTokenizer.Params(), 'Tokenizer.')
        p.Define('sequence_length', 256, 'Number of tokens in a row.')
        return p

    def __init__(self, params: hyperparams.Params) -> None:
        super().__init__(params)
        if params.bad_records == 'skip':
            self.bad_records = {}
        self.tokenizer = params.tokenizer.Instantiate()
        self._prepare()
        arrays = self._arrays(self._read())
        self._warn_of_bad_records()
        with tf.device('CPU:0'):
            self._columns = tuple(map(tf.constant, arrays))

    def _prepare(self) -> None:
        """Prepare whatever is needed to read records."""

    @property
    def bad_records_rule(self) -> str:
        """Words that name the data and say that any number of bad records may be skipped."""
        return f'{self.params.files or self.params.dataset!r}; any number may be skipped'

    def _records(self):
        """Read the records; from TFDS only the fields that are named."""
        p = self.params
        if p.files is not None:
            return text_records.from_files(p.files, p.format)
        names = [p.Get(field) for field in (*self._fields, 'weight_field')]
        return text_records.from_tfds(p.dataset, p.split, p.data_dir, [name for name in names if name])

    def _read(self):
        """Return (place, *row, sample weight) of each good record."""

        def checked(record):
            if record.problem:
                raise record_fields.BadRecord(record.problem)
            return record.place, *self._row(record), record_fields.weight(record, self.params.weight_field)

        return self._good(((record.place, record) for record in self._records()), checked)

    def _good(self, rows: Iterable[tuple], checked: Callable[..., Any]) -> list:
        """Return `checked(*row)` of all `(place, *row)`; leave out rows for which it raises `BadRecord`."""
        kept = []
        for place, *row in rows:
            try:
                kept.append(checked(*row))
            except record_fields.BadRecord as error:
                self._refuse(place, str(error))
        if not kept:
            raise ValueError(self._nothing_left())
        return kept

    def _tokenized(self, texts: Iterable[str]) -> Iterable[np.ndarray]:
        """Return the tokens of each text."""
        dataset = tf.data.Dataset.from_tensor_slices(list(texts))
        return base_input.parallel_map(dataset, self.tokenizer.encode).as_numpy_iterator()

    def _refuse(self, place, reason):
        if self.params.bad_records == 'raise':
            raise ValueError(f"{place}, {reason} Repair the record, or set bad_records='skip' to leave such records "
                             'out.')
        self.bad_records[place] = reason

    def _warn_of_bad_records(self):
        """Warn of the number of records that are left out."""
        if self.bad_records:
            first = [f'{place}, {reason}' for place, reason in list(self.bad_records.items())[:_NUM_NAMED]]
            logging.warning('Left out %d bad records of %s; the first:\n%s', len(self.bad_records),
                            self.params.files or self.params.dataset, '\n'.join(first))

    def _nothing_left(self):
        source = self.params.files or self.params.dataset
        if not self.bad_records:
            return f'files: {source!r} holds no record. Give files with records.'
        place, reason = next(iter(self.bad_records.items()))
        return f'files: {source!r} holds no good record; the first: {place}, {reason} Repair them.'

    def _check_params(self):
        super()._check_params()
        self._check_at_least(sequence_length=1)
        p = self.params
        if (p.files is None) == (p.dataset is None):
            given = 'neither was given' if p.files is None else 'both were given'
            raise ValueError(f'files or dataset says which records to read, and {given}. Set one of them.')
        for field in (*self._fields, 'weight_field'):
            if not isinstance(p.Get(field), (str, type(None))):
                raise ValueError(f'{field}: {p.Get(field)!r} is not allowed. Set it to the name of a field.')
        if p.bad_records not in _ON_BAD_RECORDS:
            raise ValueError(f'bad_records: {p.bad_records!r} is not allowed. Choose one of {_ON_BAD_RECORDS}.')


class EncoderInput(RecordInput):
    """Records for an encoder of KerasHub; a row has start, tokens, end, padding."""

    @staticmethod
    def InputSpec(params: hyperparams.Params) -> dict[str, tf.TensorSpec]:
        """Return the dictionary of the inputs' `tf.TensorSpec`s, all `[batch_size, sequence_length]`; read no records.

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
        """Return parts of up to `_room` tokens as padded rows, int32 `[n, length]`, and row lengths, int32 `[n]`."""
        special = self.tokenizer.keras_hub_tokenizer()
        rows = [[special.start_token_id, *part, special.end_token_id] for part in parts]
        length, padding = self.params.sequence_length, special.pad_token_id
        padded = keras.utils.pad_sequences(rows, length, padding='post', value=padding)
        return padded, np.array(list(map(len, rows)), np.int32)

    def _tensors(self, token_ids, lengths):
        """Return the tensors of a batch of `_token_rows`; a row is one segment."""
        mask = tf.range(token_ids.shape[1]) < lengths[:, tf.newaxis]
        known = {'token_ids': token_ids, 'padding_mask': mask, 'segment_ids': tf.zeros_like(token_ids)}
        return {name: part for name, part in known.items() if name in self.input_spec}
