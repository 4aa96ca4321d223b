"""Text files from anybody: neither a pipe nor a device, no larger than such a file can be, and nothing but UTF-8.

A pipe would never answer, a device such as /dev/zero never end, and a file that unpacks or nests without end would take
the memory of the machine. What is refused is a ValueError whose message is the reason alone; whoever reads names the
file and says what to do.
"""

import json
import os
import stat
from collections.abc import Callable
from typing import Any, Protocol


class _Stream(Protocol):
    def read(self, size: int) -> bytes: ...


def read(path: str | os.PathLike[str], most_bytes: int) -> str:
    """Returns the text of a file of this machine.

    Args:
        path: its path.
        most_bytes: the largest size that a file of this kind can have.

    Raises:
        ValueError: it cannot be read; the message is the reason.
    """
    require_regular(path)
    try:
        with open(path, 'rb') as stream:
            return text_of(stream, most_bytes)
    except OSError as error:
        raise ValueError(error.strerror or type(error).__name__) from error


def require_regular(path: str | os.PathLike[str]) -> None:
    """Raises ValueError where a path of this machine is a folder, a pipe or a device; one elsewhere is let through."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):  # not there, or not on this machine: opening it says so
        return
    if not stat.S_ISREG(mode):
        raise ValueError('it is a folder, a pipe or a device, not a file')


def text_of(stream: _Stream, most_bytes: int) -> str:
    """Returns the text of an open file.

    Args:
        stream: the file, open for bytes.
        most_bytes: as `read` takes it.

    Raises:
        ValueError: it is larger, or not UTF-8; the message is the reason.
    """
    content = stream.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise ValueError(f'it has more than {most_bytes:,} bytes, which no such file needs')
    try:
        return content.decode('utf-8')
    except UnicodeDecodeError as error:
        raise ValueError(f'it is not text in UTF-8, from byte {error.start} on') from error


def parsed_json(text: str, object_pairs_hook: Callable[[list[tuple[str, Any]]], Any] | None = None) -> Any:
    """Returns the value of a text of JSON.

    Args:
        text: the text.
        object_pairs_hook: as `json.loads` takes it.

    Raises:
        ValueError: it is no JSON, or nested deeper than Python's stack; the message is the reason.
    """
    try:
        return json.loads(text, object_pairs_hook=object_pairs_hook)
    except RecursionError as error:
        raise ValueError('it is nested too deeply') from error
