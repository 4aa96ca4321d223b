"""Lines over a few sizes, as a picture."""

import io
import math

from PIL import Image, ImageDraw, ImageFont

_COLOURS = ('#d0743c', '#2f6fae', '#4d9a5b', '#8a6bbf')
_INK, _GRID = '#202020', '#dddddd'
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 60, 40, 52
_FONT_SIZE = 13


class _Chart:
    """An image with axes: sizes at equal distances, values from a round number below the least to one above the
    greatest."""

    def __init__(self, values, num_sizes, width, height):
        self.image = Image.new('RGB', (width, height), 'white')
        self.draw, self.font = ImageDraw.Draw(self.image), ImageFont.load_default(_FONT_SIZE)
        self.unit = _round_unit((max(values) - min(values)) / 4)
        self.least = math.floor(min(values) / self.unit) * self.unit
        self.greatest = max(math.ceil(max(values) / self.unit) * self.unit, self.least + self.unit)
        self._num_sizes = num_sizes

    def x(self, index):
        """Returns the column of a size."""
        return _LEFT + round((self.image.width - _LEFT - _RIGHT) * (index + 0.5) / self._num_sizes)

    def y(self, value):
        """Returns the row of a value."""
        share = (value - self.least) / (self.greatest - self.least)
        return round(self.image.height - _BOTTOM - (self.image.height - _TOP - _BOTTOM) * share)

    def text(self, x, y, text, colour=_INK, anchor='mm'):
        self.draw.text((x, y), text, colour, self.font, anchor=anchor)


def png(lines, sizes, x_title, y_title, width=760, height=400):
    """Draws one line a series.

    Args:
        lines: dictionary from name to its values, one a size; what is not a number is left out.
        sizes: list of what stands along the bottom.
        x_title: what the sizes are.
        y_title: what the values are.
        width: pixels.
        height: pixels.

    Returns:
        Bytes of a PNG file.
    """
    finite = {name: [(index, value) for index, value in enumerate(values) if math.isfinite(value)]
              for name, values in lines.items()}
    chart = _Chart([value for values in finite.values() for _, value in values], len(sizes), width, height)
    _axes(chart, sizes, x_title, y_title)
    names_so_far = []
    for colour, (name, values) in zip(_COLOURS, finite.items(), strict=False):
        points = [(chart.x(index), chart.y(value)) for index, value in values]
        if not points:
            continue
        chart.draw.line(points, colour, 3)
        for x, y in points:
            chart.draw.ellipse([x - 4, y - 4, x + 4, y + 4], colour)
        names_so_far.append(_free_row(points[-1][1], names_so_far))
        chart.text(points[-1][0] + 12, names_so_far[-1], name, colour, 'lm')
    file = io.BytesIO()
    chart.image.save(file, 'PNG', optimize=True)
    return file.getvalue()


def _axes(chart, sizes, x_title, y_title):
    bottom, right = chart.image.height - _BOTTOM, chart.image.width - _RIGHT
    for index in range(round((chart.greatest - chart.least) / chart.unit) + 1):
        value = chart.least + index * chart.unit
        chart.draw.line([_LEFT, chart.y(value), right, chart.y(value)], _GRID)
        chart.text(_LEFT - 8, chart.y(value), f'{value:g}', anchor='rm')
    for index, size in enumerate(sizes):
        chart.text(chart.x(index), bottom + 14, f'{size:,}')
    chart.text((_LEFT + right) / 2, bottom + 36, x_title)
    chart.text(_LEFT, _TOP / 2, y_title, anchor='lm')


def _round_unit(least):
    """Returns the smallest of 1, 2 and 5 times a power of ten that is not below `least`."""
    power = 10.0 ** math.floor(math.log10(max(least, 1e-6)))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least)


def _free_row(row, taken):
    while any(abs(row - other) < _FONT_SIZE + 2 for other in taken):
        row += 1
    return row
