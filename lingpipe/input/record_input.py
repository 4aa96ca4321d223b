"""The base class of inputs of text records: reading records, and skipping bad records."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from lingpipe import hyperparams
from lingpipe.input import base_input, hub_tokenizer, memory_input, record_fields, text_records

_ON_BAD_RECORDS = ('raise', 'skip')
_NUM_NAMED = 5
_ROWS_AT_ONCE = 1024


def by_pieces(function: Callable[[slice], Any], count: int) -> Any:
    """Calls a function for some rows at a time, and concatenates the nests of arrays `[rows, ...]` that it returns.

    In this way KerasHub's preprocessors run on Python strings. Tracing them takes seconds, and makes them no faster.

    Args:
        function: function of a slice of the rows.
        count: number of rows.
    """
    pieces = [function(slice(start, start + _ROWS_AT_ONCE)) for start in range(0, count, _ROWS_AT_ONCE)]
    return tf.nest.map_structure(lambda *parts: np.concatenate(parts), *pieces)


def filled(parts: Sequence[Sequence[int]], length: int, padding: int) -> np.ndarray:
    """Returns int32 `[n, length]`: each part, of at most that length, and then padding."""
    rows = np.full([len(parts), length], padding, np.int32)
    for row, part in zip(rows, parts):
        row[:len(part)] = part
    return rows


class RecordInput(memory_input.MemoryInput):
    """Records of texts from files or TFDS, which are read and checked when the input is created, and stay in memory.

    A subclass defines `_fields`, the names of the fields of Params that name a record's fields, `_row(record)`, which
    checks them and returns a tuple, `_arrays(rows)`, which returns the columns of tuples (place, *row, sample weight),
    and `_batch`, as of every `MemoryInput`. `_prepare()` is called before any record is read.

    Attributes:
        tokenizer: the tokenizer.
        input_spec: nest of the `tf.TensorSpec` of the inputs of a batch.
        bad_records: as in `BaseInput`, if bad records are skipped.
    """

    _fields: tuple[str, ...] = ()
    _row: Callable[[text_records.Record], tuple]
    _arrays: Callable[[list[tuple]], tuple]

    @classmethod
    def Params(cls) -> hyperparams.InstantiableParams:
        """Returns the InstantiableParams of this input; set either `files` or `dataset`."""
        p = super().Params().Set(batch_size=16)
        p.Define('files', None, "Path of a file ('.jsonl', '.csv', '.tsv', '.txt'), of a folder with a folder of text "
                                'files for each class, a pattern such as "data/*.jsonl", or a list of them; None: the '
                                'TFDS dataset.')
        p.Define('format', None, f'Format of files: one of {text_records.FORMATS}; None: by their endings.')
        p.Define('csv_columns', None, 'Names of the columns of CSV files without a header; None: the first row.')
        p.Define('weight_field', None, 'Field of the sample weight, which multiplies the weights of the loss; None: 1.')
        p.Define('bad_records', 'raise', "'raise' ends with the name of the first bad record; 'skip' leaves bad "
                                         'records out, and warns how many.')
        p.Define('tokenizer', hub_tokenizer.KerasHubTokenizer.Params(), 'What makes tokens of a text.')
        p.Define('sequence_length', 256, 'Number of tokens in a row.')
        return p

    def __init__(self, params: hyperparams.Params) -> None:
        super().__init__(params)
        if params.bad_records == 'skip':
            self.bad_records = {}
        self.tokenizer = params.tokenizer.Instantiate()
        self.input_spec = self.InputSpec(self.params)
        self._prepare()
        arrays = self._arrays(self._read())
        self._warn_of_bad_records()
        with tf.device('CPU:0'):
            self._columns = tuple(map(tf.constant, arrays))

    def _prepare(self) -> None:
        """Makes what reading records needs."""

    @property
    def bad_records_rule(self) -> str:
        """Words that name the data and say that any number of bad records may be skipped."""
        return f'{self.params.files or self.params.dataset!r}; any number may be skipped'

    def _records(self):
        """Reads the records; from TFDS only the fields that are named."""
        p = self.params
        if p.files is not None:
            return text_records.from_files(p.files, p.format, p.csv_columns)
        names = [p.Get(field) for field in (*self._fields, 'weight_field')]
        return text_records.from_tfds(p.dataset, p.split, p.data_dir, [name for name in names if name])

    def _read(self):
        """Returns (place, *row, sample weight) of each good record."""

        def checked(record):
            if record.problem:
                raise record_fields.BadRecord(record.problem)
            return record.place, *self._row(record), record_fields.weight(record, self.params.weight_field)

        return self._good(((record.place, record) for record in self._records()), checked)

    def _good(self, rows: Iterable[tuple], checked: Callable[..., Any]) -> list:
        """Returns `checked(*row)` of all `(place, *row)`, but for those for which it raises `BadRecord`."""
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
        """Returns the tokens of each text."""
        dataset = tf.data.Dataset.from_tensor_slices(list(texts))
        return base_input.parallel_map(dataset, self.tokenizer.encode).as_numpy_iterator()

    def _refuse(self, place, reason):
        if self.params.bad_records == 'raise':
            raise ValueError(f"{place}, {reason} Repair the record, or set bad_records='skip' to leave such records "
                             'out.')
        self.bad_records[place] = reason

    def _warn_of_bad_records(self):
        """Warns of the number of records that are left out."""
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
        if p.bad_records not in _ON_BAD_RECORDS:
            raise ValueError(f'bad_records: {p.bad_records!r} is not allowed. Choose one of {_ON_BAD_RECORDS}.')
