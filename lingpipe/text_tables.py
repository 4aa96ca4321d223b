"""Tables: written as plain text and read from it, and as HTML for notebooks."""

import html
import re
from collections.abc import Sequence
from typing import Any

_MOST_CELLS = 300_000  # thirty columns of a model with ten thousand layers


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
    right = _is_right(header, rows)
    lines = [_line(line, widths, right) for line in [header, ['-' * width for width in widths], *cells]]
    return '\n'.join(lines)


def read(text: str) -> tuple[list[str], list[list[str]]]:
    """Reads what `table` wrote; the line of dashes marks the columns.

    Args:
        text: a table, and nothing else.

    Returns:
        The list of column titles, and the list of rows, each a list of texts.

    Raises:
        ValueError: it is no such table, or one that is too large to show.
    """
    header, dashes, *rows = text.splitlines()
    columns = [slice(*match.span()) for match in re.finditer('-+', dashes)]
    if len(columns) * len(rows) > _MOST_CELLS:
        raise ValueError(f'{len(columns):,} columns and {len(rows):,} rows are more than {_MOST_CELLS:,} cells')
    return [header[column].strip() for column in columns], [[row[column].strip() for column in columns] for row in rows]


def html_table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Lays out the same table in HTML.

    Args:
        header: list of column titles.
        rows: list of lists of cells.

    Returns:
        A `<table>` element.
    """
    right = _is_right(header, rows)
    head = ''.join(f'<th>{html.escape(title)}</th>' for title in header)
    lines = [''.join(_html_cell(cell, is_right) for cell, is_right in zip(row, right)) for row in rows]
    return (f'<table><thead><tr>{head}</tr></thead><tbody>'
            + ''.join(f'<tr>{line}</tr>' for line in lines) + '</tbody></table>')


def _html_cell(cell, is_right):
    style = ' style="text-align: right"' if is_right else ' style="text-align: left"'
    return f'<td{style}>{html.escape(_text(cell))}</td>'


def _is_right(header, rows):
    return [all(isinstance(row[column], (int, float)) for row in rows) for column in range(len(header))]


def _text(cell):
    return f'{cell:,}' if isinstance(cell, int) else f'{cell:,.1f}' if isinstance(cell, float) else str(cell)


def _line(cells, widths, right):
    aligned = [cell.rjust(width) if is_right else cell.ljust(width)
               for cell, width, is_right in zip(cells, widths, right)]
    return '  '.join(aligned).rstrip()
