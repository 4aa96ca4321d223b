"""Text records from JSON lines, CSV or TFDS, and a base class for inputs of records."""

import csv
import dataclasses
import io
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds

from lingpipe import hyperparams, wording
from lingpipe.input import base_input, hub_tokenizer, tfds_builders

_NUM_SHOWN = 60
_ROWS_AT_ONCE = 1024
_LONGEST_FIELD = 2**31 - 1  # characters of a CSV field; Python allows 128 KiB


@dataclasses.dataclass(frozen=True)
class Record:
    """One example from a file or TFDS. `text` and `label` raise ValueError if a field is missing or invalid."""

    place: str  # file and line, or another description by which a person finds it
    fields: dict[str, Any]  # dictionary from a field's name to a str, number, bool, list, dictionary or None

    def text(self, field: str) -> str:
        """Return the text of a field, which must not be empty."""
        value = self._value(field)
        if not isinstance(value, str) or not value.strip():
            raise self.error(f'field {field!r}: {repr(value)[:_NUM_SHOWN]} is not a text, or an empty one.')
        return value

    def label(self, field: str) -> str:
        """Return the class name in a field. Integers and booleans become text as in JSON, such as 'true'."""
        value = self._value(field)
        if isinstance(value, int):  # a bool too
            return json.dumps(value)
        if not isinstance(value, str) or not value:
            raise self.error(f'field {field!r}: {repr(value)[:_NUM_SHOWN]} is not a label, which is a text or an '
                             'integer.')
        return value

    def error(self, problem: str) -> ValueError:
        """Return a ValueError that states the record's place and `problem`."""
        return ValueError(f'{self.place}, {problem} Repair the record, or leave it out.')

    def _value(self, field):
        if field not in self.fields:
            raise self.error(f'field {field!r} is missing{wording.did_you_mean(str(field), list(self.fields))}')
        return self.fields[field]


def from_files(files: str) -> Iterator[Record]:
    """Read files in the order of their paths, and yield the records. A CSV file begins with its column names."""
    for path in base_input.paths_of(files):
        ending = os.path.splitext(path)[1].lower()
        if ending not in _READERS:
            raise ValueError(f'files: the ending of {path!r} tells no format. Give files with one of the endings '
                             f'{sorted(_READERS)}.')
        yield from _READERS[ending](path)


def from_tfds(dataset: str, split: str, data_dir: str | None, wanted: Sequence[str]) -> Iterator[Record]:
    """Read a split of a TFDS dataset in stored order."""
    features = tfds_builders.find_builder(dataset, data_dir).info.features
    for name in wanted:
        if name not in features:
            raise ValueError(f'dataset: {dataset!r} has no feature {name!r}'
                             f'{wording.did_you_mean(name, list(features))} Name the feature by the field for it, '
                             'such as text_field.')
    # A translation is read as a whole, because TFDS cannot read a part of it.
    parts = None if isinstance(features, tfds.features.Translation) else tfds.decode.PartialDecoding(
        dict.fromkeys(wanted, True))
    examples = tfds_builders.Split(dataset, split, data_dir).examples(decoders=parts)
    for number, example in enumerate(examples.as_numpy_iterator()):
        values = {name: _plain_value(features[name], example[name]) for name in wanted}
        yield Record(f'record {number} of split {split!r} of {dataset!r}', values)


def class_names_of_tfds(dataset: str, data_dir: str | None, label: str) -> list[str] | None:
    """Return the class names of a dataset's feature `label`, or None if it has none. No data are prepared."""
    feature = dict(tfds_builders.find_builder(dataset, data_dir).info.features).get(label)
    return feature.names if isinstance(feature, tfds.features.ClassLabel) else None


def _from_json_lines(path):
    for number, line in enumerate(_lines(path), 1):
        if line.strip():
            yield _json_record(Record(f'{path}, line {number}', {}), line)


def _json_record(empty, line):
    try:
        fields = json.loads(line)
    except ValueError as error:
        raise empty.error(f'is not JSON ({error}), but each line must be one object: {line[:_NUM_SHOWN]!r}.') from error
    if not isinstance(fields, dict):
        raise empty.error(f'is not a JSON object, but each line must be one: {line[:_NUM_SHOWN]!r}.')
    return dataclasses.replace(empty, fields=fields)


def _from_csv(path):
    csv.field_size_limit(_LONGEST_FIELD)
    rows = csv.DictReader(_lines(path), strict=True)
    columns = rows.fieldnames or []
    if len(set(columns)) < len(columns):
        raise ValueError(f'files: {path!r} has a column twice in its first row: {columns}. Rename one.')
    try:
        for fields in rows:
            record = Record(f'{path}, line {rows.line_num}', fields)
            if None in fields or None in fields.values():  # how DictReader marks extra or missing values
                raise record.error(f'has more or fewer columns than {columns}.')
            yield record
    except csv.Error as error:
        raise Record(f'{path}, after line {rows.line_num}', {}).error(f'is not valid CSV ({error}).') from error


_READERS = {'.jsonl': _from_json_lines, '.json': _from_json_lines, '.csv': _from_csv}


def _lines(path):
    with tf.io.gfile.GFile(path, 'rb') as file:
        contents = file.read()
    try:
        return io.StringIO(contents.decode('utf-8-sig'), newline='')
    except UnicodeDecodeError as error:
        raise ValueError(f'files: {path!r} is not UTF-8 ({error}). Convert it.') from error


def _plain_value(feature, value):
    if isinstance(feature, tfds.features.ClassLabel):
        return feature.int2str(int(value)) if 0 <= value < feature.num_classes else int(value)
    if isinstance(value, bytes):
        return value.decode()
    return value.item() if isinstance(value, np.generic) else value


def by_pieces(function: Callable[[slice], Any], count: int) -> Any:
    """Call `function` with slices that cover `count` rows, and concatenate the returned arrays along axis 0."""
    # KerasHub's preprocessors run eagerly in this way. Tracing them as a graph would take seconds and save no time.
    pieces = [function(slice(start, start + _ROWS_AT_ONCE)) for start in range(0, count, _ROWS_AT_ONCE)]
    return tf.nest.map_structure(lambda *parts: np.concatenate(parts), *pieces)


class RecordInput(base_input.MemoryInput):
    """Text records from files or TFDS, kept in memory. Records are read and checked when the input is created.

    A subclass defines three members. `_fields` lists params, such as 'text_field', that name fields to read.
    `_arrays(records)` turns a list of records into one array per column. `_batch` is as in `MemoryInput`.
    """

    _fields: tuple[str, ...] = ()
    _arrays: Callable[[list[Record]], tuple]

    @classmethod
    def Params(cls) -> hyperparams.InstantiableParams:
        """Return the InstantiableParams of this input. Set either `files` or `dataset`."""
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
        p = self.params
        if p.files is not None:
            return from_files(p.files)
        return from_tfds(p.dataset, p.split, p.data_dir, [p.Get(field) for field in self._fields])

    def _tokenized(self, texts: Iterable[str]) -> Iterable[np.ndarray]:
        dataset = tf.data.Dataset.from_tensor_slices(list(texts))
        return base_input.parallel_map(dataset, self.tokenizer.encode).as_numpy_iterator()

    def _check_params(self):
        super()._check_params()
        self._check_at_least(sequence_length=1)
        p = self.params
        if (p.files is None) == (p.dataset is None):
            given = 'neither was given' if p.files is None else 'both were given'
            raise ValueError(f'files or dataset says which records to read, and {given}. Set one of them.')
