"""The base class of inputs of text records."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import tensorflow as tf

from lingpipe import hyperparams
from lingpipe.input import base_input, hub_tokenizer, text_records

_ROWS_AT_ONCE = 1024


def by_pieces(function: Callable[[slice], Any], count: int) -> Any:
    """Call a function for some rows at a time, and concatenate the nests of arrays `[rows, ...]` that it returns.

    In this way KerasHub's preprocessors run on Python strings. Tracing them takes seconds, and makes them no faster.
    """
    pieces = [function(slice(start, start + _ROWS_AT_ONCE)) for start in range(0, count, _ROWS_AT_ONCE)]
    return tf.nest.map_structure(lambda *parts: np.concatenate(parts), *pieces)


class RecordInput(base_input.MemoryInput):
    """Records of texts from files or TFDS, which are read and checked when the input is created, and stay in memory.

    A subclass defines: `_fields`, the params such as 'text_field' whose values name fields of a record;
    `_arrays(records)`, which makes arrays, one per column, of a list of records; and `_batch`, as every `MemoryInput`
    does.
    """

    _fields: tuple[str, ...] = ()
    _arrays: Callable[[list[text_records.Record]], tuple]

    @classmethod
    def Params(cls) -> hyperparams.InstantiableParams:
        """Return the InstantiableParams of this input; set either `files` or `dataset`."""
        p = super().Params().Set(batch_size=16)
        p.Define('files', None, "Path of a file ('.jsonl', '.csv') or of a folder of files, or a pattern such as "
                                '"data/*.jsonl"; None: the TFDS dataset.')
        p.Define('tokenizer', hub_tokenizer.KerasHubTokenizer.Params(), 'Tokenizer.')
        p.Define('sequence_length', 256, 'Number of tokens in a row.')
        return p

    def __init__(self, params: hyperparams.Params) -> None:
        super().__init__(params)
        self.tokenizer = params.tokenizer.Instantiate()
        records = list(self._records())
        if not records:
            raise ValueError(f'{self.source} holds no record. Give data with records.')
        with tf.device('CPU:0'):
            self._columns = tuple(map(tf.constant, self._arrays(records)))

    def _records(self):
        """Read the records; from TFDS only the fields that are named."""
        p = self.params
        if p.files is not None:
            return text_records.from_files(p.files)
        return text_records.from_tfds(p.dataset, p.split, p.data_dir, [p.Get(field) for field in self._fields])

    def _tokenized(self, texts: Iterable[str]) -> Iterable[np.ndarray]:
        """Return the tokens of each text."""
        dataset = tf.data.Dataset.from_tensor_slices(list(texts))
        return base_input.parallel_map(dataset, self.tokenizer.encode).as_numpy_iterator()

    def _check_params(self):
        super()._check_params()
        self._check_at_least(sequence_length=1)
        p = self.params
        if (p.files is None) == (p.dataset is None):
            given = 'neither was given' if p.files is None else 'both were given'
            raise ValueError(f'files or dataset says which records to read, and {given}. Set one of them.')
