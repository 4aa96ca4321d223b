"""Tables as plain text."""

from collections.abc import Sequence
from typing import Any

_LEAST_TENTH = 0.05  # smaller numbers would be rounded to 0.0


def table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Format rows as columns: text aligned left; numbers aligned right, with thousands separators."""
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
