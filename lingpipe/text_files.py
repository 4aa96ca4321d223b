"""Reading of untrusted text files: pipes, devices, files that are too large, and text that is not UTF-8 are refused.

A pipe might never answer, a device such as /dev/zero never ends, and a file that unpacks or nests without end would use
up the memory. A refused file raises a ValueError whose message is only the reason; the caller names the file and says
what to do.
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
        most_bytes: the largest allowed size of a file of this kind.

    Raises:
        ValueError: it cannot be read; the message is the reason.
    """
    path = os.path.expanduser(path)
    require_regular(path)
    try:
        with open(path, 'rb') as stream:
            return text_of(stream, most_bytes)
    except OSError as error:
        raise ValueError(error.strerror or type(error).__name__) from error


def require_regular(path: str | os.PathLike[str]) -> None:
    """Raises ValueError if a path of this machine is a folder, a pipe or a device; paths elsewhere are accepted."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):  # missing, or not on this machine: opening it raises the error
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
        return content.decode('utf-8-sig')
    except UnicodeDecodeError as error:
        raise ValueError(f'it is not text in UTF-8, from byte {error.start} on') from error


def parsed_json(text: str, object_pairs_hook: Callable[[list[tuple[str, Any]]], Any] | None = None) -> Any:
    """Returns the value of a text of JSON.

    Args:
        text: the text.
        object_pairs_hook: as `json.loads` takes it.

    Raises:
        ValueError: it is not JSON, or nested deeper than Python's stack; the message is the reason.
    """
    try:
        return json.loads(text, object_pairs_hook=object_pairs_hook)
    except RecursionError as error:
        raise ValueError('it is nested too deeply') from error
