"""Results of the TPU compiler in files, so that nothing is compiled twice. A damaged file counts as a missing one."""

import gzip
import io
import json
import os
import pathlib
import zlib
from collections.abc import Callable
from typing import Any

from absl import logging

from lingpipe import text_files

_MOST_BYTES = 64 * 2**20  # unpacked; the program of a stage with a hundred layers has some 5 MiB
_WITH_HEADER_OF_GZIP = zlib.MAX_WBITS | 16
_NUM_SHOWN = 200


def read(path: pathlib.Path, check: Callable[[dict[str, Any]], None]) -> dict[str, Any] | None:
    """Reads an answer.

    Args:
        path: path of the file.
        check: function of the answer, which raises an error if it is not one.

    Returns:
        The answer; None if there is no file, or a damaged one.
    """
    if not os.path.lexists(path):
        return None
    try:
        text_files.require_regular(path)
        answer = text_files.parsed_json(text_files.text_of(io.BytesIO(_unpacked(path)), _MOST_BYTES))
        check(answer)
        return answer
    except (OSError, zlib.error, ValueError, TypeError, AttributeError, LookupError, ArithmeticError) as error:
        reason = f'{type(error).__name__}: {str(error)[:_NUM_SHOWN]}'
        logging.warning('%s is damaged (%s): the program is compiled again.', path, reason)
        return None


def _unpacked(path):
    with open(path, 'rb') as stream:
        content = stream.read(_MOST_BYTES + 1)
    unpacker = zlib.decompressobj(_WITH_HEADER_OF_GZIP)
    unpacked = unpacker.decompress(content, _MOST_BYTES + 1)
    if len(unpacked) <= _MOST_BYTES and not unpacker.eof:
        raise ValueError('it ends too early')
    return unpacked


def write(path: pathlib.Path, answer: dict[str, Any]) -> None:
    """Writes an answer atomically: the file is complete, or does not exist. One that `read` would refuse is not kept.

    If it cannot be written, a warning appears.

    Args:
        path: path of the file; its folder is made if need be.
        answer: the answer.
    """
    text, partial = json.dumps(answer).encode(), path.with_suffix(f'.{os.getpid()}')
    if len(text) > _MOST_BYTES:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_bytes(gzip.compress(text))
        partial.replace(path)
    except OSError as error:
        logging.warning('%s could not be written (%s): the program will be compiled again.', path, error.strerror)
        partial.unlink(missing_ok=True)
