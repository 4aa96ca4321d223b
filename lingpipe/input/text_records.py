"""Records of texts from JSON lines, CSV, folders of text files and TFDS, each with its place for error messages."""

import codecs
import csv
import dataclasses
import io
import json
import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds

from lingpipe import spelling
from lingpipe.input import base_input, tfds_builders

_FORMATS = {'.jsonl': 'jsonl', '.ndjson': 'jsonl', '.json': 'jsonl', '.csv': 'csv', '.tsv': 'tsv', '.txt': 'text'}
_DELIMITERS = {'csv': ',', 'tsv': '\t'}
FORMATS = sorted(set(_FORMATS.values()))
_NUM_SHOWN = 60
_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_LARGEST_CSV_FIELD = 2**26  # characters, for which csv needs four bytes each; Python's own limit is 2**17


@dataclasses.dataclass(frozen=True)
class Record:
    """One example as it is stored."""

    place: str  # file and line, or another description by which a person finds it
    fields: dict[str, Any]  # dictionary from a field's name to a str, number, bool, list, dictionary or None
    problem: str = ''  # problem of the record as a whole; empty if it could be read


def from_files(files: str | Sequence[str], file_format: str | None = None) -> Iterator[Record]:
    """Yield the records of files one after the other; the files of a pattern or a folder are sorted by path.

    A folder has one folder of '.txt' files for each class, as for `keras.utils.text_dataset_from_directory`; these
    become the fields 'text' and 'label'. The first row of a CSV file names its columns.

    Args:
        files: path of a file or a folder, glob pattern, or several of them.
        file_format: one of `FORMATS`; None: by the ending of each file.

    Raises:
        ValueError: there is no such file, or its format is unknown.
    """
    if file_format is not None and file_format not in FORMATS:
        raise ValueError(f'format={file_format!r} is unknown{spelling.did_you_mean(str(file_format), FORMATS)}')
    patterns = [files] if isinstance(files, str) else files
    if not isinstance(patterns, (list, tuple)) or not all(isinstance(each, (str, os.PathLike)) for each in patterns):
        raise ValueError(f'files: {files!r} is not possible: it must be a path, a pattern, or a list of them. Set '
                         "it to one, such as 'data/*.jsonl'.")
    for pattern in patterns:
        for path in base_input.paths_of(pattern):
            yield from _from_folder(path) if tf.io.gfile.isdir(path) else _from_file(path, file_format)


def from_tfds(dataset: str, split: str, data_dir: str | None, wanted: Sequence[str]) -> Iterator[Record]:
    """Read a split of a TFDS dataset in stored order.

    Raises:
        ValueError: dataset, split or a feature is unknown.
        RuntimeError: the data do not exist and cannot be prepared.
    """
    features = tfds_builders.find_builder(dataset, data_dir).info.features
    for name in wanted:
        if name not in features:
            raise ValueError(f'dataset: {dataset!r} has no feature {name!r}'
                             f'{spelling.did_you_mean(name, list(features))} Name the feature by the field for it, '
                             'such as text_field.')
    # A translation is read as a whole, because TFDS cannot read a part of it.
    parts = None if isinstance(features, tfds.features.Translation) else tfds.decode.PartialDecoding(
        dict.fromkeys(wanted, True))
    examples = tfds_builders.Split(dataset, split, data_dir).examples(decoders=parts)
    for number, example in enumerate(examples.as_numpy_iterator()):
        values = {name: _plain_value(features[name], example[name]) for name in wanted}
        yield Record(f'record {number} of split {split!r} of {dataset!r}', values)


def class_names_of_tfds(dataset: str, data_dir: str | None, label: str) -> list[str] | None:
    """Return the names of the classes of the feature `label` in their order, preparing no data; None: it has none."""
    feature = dict(tfds_builders.find_builder(dataset, data_dir).info.features).get(label)
    return feature.names if isinstance(feature, tfds.features.ClassLabel) else None


def _from_file(path, file_format):
    file_format = file_format or _FORMATS.get(os.path.splitext(path)[1].lower())
    if file_format is None:
        raise ValueError(f'files: the ending of {path!r} tells no format; known are {sorted(_FORMATS)}. Set format to '
                         f'one of {FORMATS}.')
    if file_format == 'jsonl':
        return _from_json_lines(path)
    if file_format == 'text':
        return iter([Record(path, {'text': _text(path)})])
    return _from_csv(path, _DELIMITERS[file_format])


def _from_json_lines(path):
    for number, line in enumerate(_lines(path), 1):
        if line.strip():
            yield _json_record(f'{path}, line {number}', line)


def _json_record(place, line):
    try:
        fields = json.loads(line)
    except json.JSONDecodeError as error:
        reason = f'{error.msg} at column {error.colno}'
        return Record(place, {}, f'is not JSON, but each line must be one object ({reason}): {shown(line)}.')
    except (ValueError, RecursionError) as error:
        return Record(place, {}, f'cannot be read ({error}): {shown(line)}.')
    if isinstance(fields, list):
        return Record(place, {}, f'is a JSON array, but each line must be one object: {shown(line)}.')
    if not isinstance(fields, dict):
        return Record(place, {}, f'is not a JSON object, but each line must be one: {shown(line)}.')
    return Record(place, fields)


def _from_csv(path, delimiter):
    rows = csv.reader(_lines(path), delimiter=delimiter, strict=True)
    columns, number = None, 1
    while True:
        place = f'{path}, line {number}'
        row, error = _next_row(rows)
        first, number = number, rows.line_num + 1
        if error:
            more = f'; a quote may be open, up to line {rows.line_num}' if rows.line_num > first else ''
            yield Record(place, {}, f'is not valid CSV ({error}){more}.')
        elif row is None:
            return
        elif columns is None and row:
            columns = row
            _require_different(path, columns)
        elif row:  # an empty line is not a record
            yield _csv_record(place, columns, row)


def _require_different(path, columns):
    doubled = sorted({name for name in columns if columns.count(name) > 1})
    if doubled:
        raise ValueError(f'files: {path!r} has more than one column {", ".join(map(repr, doubled))} in its first row. '
                         'Rename one.')


def _next_row(rows):
    """Return the next row, or None at the end, and its error, or None."""
    limit = csv.field_size_limit(_LARGEST_CSV_FIELD)
    try:
        return next(rows, None), None
    except csv.Error as error:
        return None, error
    finally:
        csv.field_size_limit(limit)


def _csv_record(place, columns, row):
    if len(row) != len(columns):
        return Record(place, {}, f'has {len(row)} columns, not the {len(columns)} of {shown(repr(columns))}: '
                                 f'{shown(repr(row))}.')
    return Record(place, dict(zip(columns, row)))


def _from_folder(path):
    """Read text files; all files below a subfolder, at any depth, belong to its class."""
    for folder, folders, names in sorted(tf.io.gfile.walk(path)):
        del folders
        below = os.path.relpath(folder, path).split(os.sep)
        if any(name.startswith('.') and name != '.' for name in below):
            continue
        for name in sorted(names):
            if name.lower().endswith('.txt') and not name.startswith('.'):
                file = os.path.join(folder, name)
                yield Record(file, {'text': _text(file), **({} if below == ['.'] else {'label': below[0]})})


def _lines(path):
    """Yield lines with their ends; bytes that are not UTF-8 become lone surrogates, which texts may not contain."""
    try:
        with tf.io.gfile.GFile(path, 'rb') as file:
            content = file.read()  # its own iteration would drop carriage returns
    except tf.errors.OpError as error:
        raise ValueError(f'files: {path!r} cannot be read ({error.message}). Give the path of a file or a '
                         'folder.') from error
    if content.startswith(_UTF_16) or b'\0' in content[:2]:
        raise ValueError(f'files: {path!r} is text in UTF-16, not in UTF-8. Convert it, as by `iconv -f UTF-16 -t '
                         'UTF-8`.')
    for number, line in enumerate(io.BytesIO(content)):
        yield line.decode('utf-8-sig' if number == 0 else 'utf-8', errors='surrogateescape')


def _text(path):
    return ''.join(_lines(path))


def _plain_value(feature, value):
    if isinstance(feature, tfds.features.ClassLabel):
        return feature.int2str(int(value)) if 0 <= value < feature.num_classes else int(value)
    if isinstance(value, bytes):
        return value.decode('utf-8', errors='surrogateescape')
    return value.item() if isinstance(value, np.generic) else value


def shown(text: str) -> str:
    """Return a text that is short enough for a message."""
    text = text.strip()
    return text if len(text) <= _NUM_SHOWN else f'{text[:_NUM_SHOWN]}...'
