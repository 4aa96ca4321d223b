"""Checked values of a record's fields.

Each function takes a `text_records.Record` and the name of a field. It raises `BadRecord`, which names the field, if
the value is missing, empty, or of a wrong kind, or is text that was not stored as UTF-8.
"""

import contextlib
import json
import math
from collections.abc import Callable, Iterable, Iterator

from lingpipe import spelling
from lingpipe.input import text_records


class BadRecord(ValueError):
    """A problem of a record; the reader adds the place to the message."""


def text(record: text_records.Record, field: str) -> str:
    """Return a text that is not empty."""
    value = _value(record, field)
    if not isinstance(value, str):
        raise BadRecord(f'field {field!r}: {text_records.shown(repr(value))} is not a text.')
    if not value.strip():
        raise BadRecord(f'field {field!r}: {value!r} is empty.')
    return _unicode(field, value)


def label(record: text_records.Record, field: str) -> str:
    """Return the name of a class: a text unchanged, an integer or a boolean as in JSON."""
    value = _value(record, field)
    if isinstance(value, int):  # a bool too
        return json.dumps(value)
    if not isinstance(value, str) or not value:
        raise BadRecord(f'field {field!r}: {text_records.shown(repr(value))} is not a label, which is a text or an '
                        'integer.')
    return _unicode(field, value)


def weight(record: text_records.Record, field: str | None) -> float:
    """Return a sample weight; 1 if there is no field for it."""
    if field is None:
        return 1.0
    value = _value(record, field)
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not (math.isfinite(number) and number >= 0):
        raise BadRecord(f'field {field!r}: {text_records.shown(repr(value))} is not a weight, which is a number from '
                        '0.')
    return number


def good_values(read: Callable[[text_records.Record, str], str], records: Iterable[text_records.Record],
                field: str) -> Iterator[str]:
    """Yield `read(record, field)`; bad records are left out here, and reported by the input that trains on them."""
    for record in records:
        with contextlib.suppress(BadRecord):
            yield read(record, field)


def _value(record, field):
    if field not in record.fields:
        raise BadRecord(f'field {field!r} is missing{spelling.did_you_mean(str(field), list(record.fields))}')
    return record.fields[field]


def _unicode(field, value):
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise BadRecord(f'field {field!r}: the text is not UTF-8 from character {error.start} on.') from error
    return value
