"""Texts for people: tables as plain text, and suggestions for wrong names."""

import difflib
from collections.abc import Collection, Sequence
from typing import Any

_LEAST_TENTH = 0.05  # smaller numbers would be rounded to 0.0
_NUM_SHOWN = 5


def table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Format rows as a table of plain text."""
    cells = [[_text(cell) for cell in row] for row in rows]
    widths = [max(len(line[column]) for line in [header, *cells]) for column in range(len(header))]
    right = _is_right(header, rows)
    lines = [_line(line, widths, right) for line in [header, ['-' * width for width in widths], *cells]]
    return '\n'.join(lines)


def _is_right(header, rows):
    return [all(isinstance(row[column], (int, float)) for row in rows) for column in range(len(header))]


def _text(cell):
    if isinstance(cell, float):
        return f'{cell:.1g}' if 0 < abs(cell) < _LEAST_TENTH else f'{cell:,.1f}'
    return f'{cell:,}' if isinstance(cell, int) else str(cell)


def _line(cells, widths, right):
    aligned = [cell.rjust(width) if is_right else cell.ljust(width)
               for cell, width, is_right in zip(cells, widths, right)]
    return '  '.join(aligned).rstrip()


def did_you_mean(name: str, names: Collection[str], prefix: str = '', see_all: str = '') -> str:
    """Return the end of an error message, which suggests some of `names` instead of `name`.

    Args:
        prefix: text to show before each of `names`.
        see_all: command or file that shows all names.
    """
    likely = close(name, names)
    if likely:
        return '; did you mean ' + ' or '.join(prefix + each for each in likely) + '?'
    return f'; {what_there_is(name, names, prefix, see_all)}.'


def close(name: str, names: Collection[str]) -> list[str]:
    """Return at most three of `names` that resemble `name`."""
    return difflib.get_close_matches(name, dict.fromkeys(names))


def what_there_is(name: str, names: Collection[str], prefix: str = '', see_all: str = '') -> str:
    """Return a text with the names that are nearest to `name`, at most five. See `did_you_mean`."""
    names = sorted({prefix + each for each in names})
    if len(names) <= _NUM_SHOWN:
        return f'there are: {", ".join(names)}' if names else 'there are none'
    nearest = difflib.get_close_matches(prefix + name, names, _NUM_SHOWN, cutoff=0)
    where = f' (all: {see_all})' if see_all else ''
    return f'the nearest of {len(names)} are: {", ".join(nearest)}{where}'
