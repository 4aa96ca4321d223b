"""Plain text tables."""

from collections.abc import Sequence
from typing import Any


def table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Lays out columns side by side; numbers to the right, text to the left.

    Args:
        header: list of column titles.
        rows: list of lists of cells; numbers get thousands separators.

    Returns:
        The table as one string.
    """
    cells = [[_text(cell) for cell in row] for row in rows]
    widths = [max(len(line[column]) for line in [header, *cells]) for column in range(len(header))]
    right = [all(isinstance(row[column], (int, float)) for row in rows) for column in range(len(header))]
    lines = [_line(line, widths, right) for line in [header, ['-' * width for width in widths], *cells]]
    return '\n'.join(lines)


def _text(cell):
    return f'{cell:,}' if isinstance(cell, int) else f'{cell:,.1f}' if isinstance(cell, float) else str(cell)


def _line(cells, widths, right):
    aligned = [cell.rjust(width) if is_right else cell.ljust(width)
               for cell, width, is_right in zip(cells, widths, right)]
    return '  '.join(aligned).rstrip()
