"""Sizes of memory as people write and read them."""

import re

_UNITS = {'': 1, 'b': 1, **{f'{letter}b': 1000 ** power for power, letter in enumerate('kmgt', 1)},
          **{f'{letter}ib': 1024 ** power for power, letter in enumerate('kmgt', 1)}}


def to_bytes(field, size):
    """Reads a size.

    Args:
        field: what it is for, for the message.
        size: number of bytes, or text such as '16GiB', '8 GB' or '16e9'.

    Returns:
        Number of bytes.

    Raises:
        ValueError: when it is no size.
    """
    match = re.fullmatch(r'\s*(\d+(?:\.\d*)?(?:e\d+)?)\s*([a-z]*)\s*', str(size).lower())
    if match is None or match[2] not in _UNITS or not float(match[1]):
        raise ValueError(f'{field}={size!r} is no size of a memory. Write it as 16GiB, 40GB or as a number of bytes, as 16e9.')
    return round(float(match[1]) * _UNITS[match[2]])


def to_text(num_bytes):
    """Returns '1.50 GiB', or a smaller unit for what is less."""
    for unit, size in (('TiB', 2**40), ('GiB', 2**30), ('MiB', 2**20)):
        if num_bytes >= size:
            return f'{num_bytes / size:,.2f} {unit}'
    return f'{num_bytes / 1024:,.2f} KiB'
