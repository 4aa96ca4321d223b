"""Drawings of a report as SVG: lines over steps, and blocks on rows."""

import math
from collections.abc import Sequence

from lingpipe.tools.report.page import Element, element
from lingpipe.tools.trace.trace_blocks import WAIT, Block

_WIDTH, _HEIGHT = 470, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 12, 10, 28
_MOST_POINTS, _MOST_DOTS, _NUM_COLOURS = 400, 40, 5
_LEAST_DRAWN, _MOST_DRAWN = 1e-300, 1e300  # beyond these, differences of numbers are not finite or none
_ROWS_WIDTH, _ROW, _GAP, _LETTER = 1020, 24, 5, 6.6


def number(value: float) -> str:
    """Returns a number as text: four digits, thousands separated."""
    return f'{value:,.0f}' if 1000 <= abs(value) < 1e9 else f'{value:.4g}'


def ticks(least: float, greatest: float, at_most: int = 5) -> list[float]:
    """Returns round numbers at equal distances between two numbers.

    Args:
        least: the smaller number.
        greatest: the greater number.
        at_most: largest number of ticks.
    """
    distance = (greatest - least) / at_most
    power = 10.0 ** math.floor(math.log10(distance))
    unit = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= distance)
    return [index * unit for index in range(math.ceil(least / unit), math.floor(greatest / unit) + 1)][:at_most]


class _Scale:
    """Converts values to pixels.

    Args:
        values: the values of the axis.
        first: pixel of the least value.
        last: pixel of the greatest value.
    """

    def __init__(self, values, first, last):
        self.least, self.greatest = min(values), max(values)
        if self.least == self.greatest:
            margin = abs(self.least) / 10 or 1.0
            self.least, self.greatest = self.least - margin, self.greatest + margin
        self._first, self._pixels = first, (last - first) / (self.greatest - self.least)

    def __call__(self, value):
        return f'{self._first + (value - self.least) * self._pixels:.1f}'


def lines(name: str, series: dict[str, list[tuple[int, float]]]) -> Element:
    """Draws curves over steps, without values that are not finite, or as good as.

    Args:
        name: title of the chart.
        series: dictionary from the name of a curve to its pairs (step, value).
    """
    series = {title: [(step, value if abs(value) > _LEAST_DRAWN else 0.0) for step, value in points
                      if abs(value) < _MOST_DRAWN]
              for title, points in series.items()}
    series = {title: points for title, points in series.items() if points}
    heading = element('h3', name, *(part for index, title in enumerate(series) for part in (
        element('span', class_=f'key s{index % _NUM_COLOURS}'), title)))
    if not series:
        return element('figure', heading, element('p', 'No value is finite.', class_='soft'))
    x = _Scale([step for points in series.values() for step, _ in points], _LEFT, _WIDTH - _RIGHT)
    y = _Scale([value for points in series.values() for _, value in points], _HEIGHT - _BOTTOM, _TOP)
    drawn = [part for index, (title, points) in enumerate(series.items())
             for part in _curve(title, points, x, y, f's{index % _NUM_COLOURS}')]
    return element('figure', heading, element(
        'svg', *_axes(x, y), *drawn, viewBox=f'0 0 {_WIDTH} {_HEIGHT}', role='img', aria_label=name))


def _curve(title, points, x, y, colour):
    shown = thinned(points)
    yield element('polyline', points=' '.join(f'{x(step)},{y(value)}' for step, value in shown), class_=colour,
                  style='fill: none')
    dots = points if len(points) <= _MOST_DOTS else points[-1:]
    for step, value in dots:
        tip = element('title', f'{title}, step {step:,}: {number(value)}')
        yield element('circle', tip, cx=x(step), cy=y(value), r='3', class_=colour)


def thinned(points: list) -> list:
    """Thins points to the least and the greatest of each interval, so that no peak is lost.

    Args:
        points: list of pairs (step, value).
    """
    size = 2 * math.ceil(len(points) / _MOST_POINTS)
    if len(points) <= _MOST_POINTS:
        return points
    runs = [points[start:start + size] for start in range(0, len(points), size)]
    kept = [{min(run, key=lambda point: point[1]), max(run, key=lambda point: point[1])} for run in runs]
    return sorted(set().union(*kept) | {points[0], points[-1]})


def _axes(x, y):
    for value in ticks(y.least, y.greatest):
        yield element('line', x1=_LEFT, x2=_WIDTH - _RIGHT, y1=y(value), y2=y(value))
        yield element('text', number(value), x=_LEFT - 6, y=y(value), dy='4', class_='soft end')
    for value in ticks(x.least, x.greatest):
        if value == int(value):
            yield element('text', f'{int(value):,}', x=x(value), y=_HEIGHT - 8, class_='soft middle')
    yield element('text', 'step', x=2, y=_HEIGHT - 8, class_='soft')  # apart from the first number


def rows(names: Sequence[str], blocks: Sequence[Block], extent: float, colours: dict[str, str], name: str,
         limit: float | None = None) -> Element:
    """Draws blocks on rows, all on one scale.

    Args:
        names: names of the rows.
        blocks: `Block`s; later ones cover earlier ones.
        extent: value at the right edge; 0 if nothing takes room.
        colours: dictionary from the kind of a block to its colour.
        name: description of the drawing, for screen readers.
        limit: value of a line across all rows, or None.
    """
    left = 14 + round(_LETTER * max(map(len, names)))
    pixels = (_ROWS_WIDTH - left) / (extent or 1.0)
    tops = [index * (_ROW + _GAP) for index in range(len(names))]
    texts = [element('text', name, x='0', y=top + _ROW / 2, dy='4') for name, top in zip(names, tops)]
    drawn = [part for block in blocks for part in _block(block, left, tops[block.row], pixels, colours)]
    height = tops[-1] + _ROW
    if limit is not None:
        at = f'{left + limit * pixels:.1f}'
        drawn.append(element('line', x1=at, x2=at, y1='0', y2=height, class_='limit'))
    return element('div', element('svg', *texts, *drawn, viewBox=f'0 0 {_ROWS_WIDTH} {height}', role='img',
                                  aria_label=name), class_='wide')


def _block(block, left, top, pixels, colours):
    """Draws a block in whole pixels; blocks that are too short to be visible are left out of the file."""
    first, last = (round(left + moment * pixels) for moment in (block.begin, block.end))
    if last > first:
        look = {'class_': 'wait'} if block.kind == WAIT else {'fill': colours[block.kind]}
        gap = 0 if block.kind == WAIT or last - first < 4 else 1
        yield element('rect', x=first, y=top, width=last - first - gap, height=_ROW, **look)
        if block.label and last - first > _LETTER * len(block.label) + 3:
            yield element('text', block.label, x=(first + last) / 2, y=top + _ROW / 2, dy='4', class_='inside')


def legend(names: dict[str, str], colours: dict[str, str], kinds: set[str]) -> Element:
    """Returns the legend of the colours.

    Args:
        names: dictionary from kind to its name.
        colours: dictionary from kind to its colour.
        kinds: the kinds in the drawing.
    """
    return element('p', *(part for kind, name in names.items() if kind in kinds for part in (
        element('span', class_='key', style=f'background: {"var(--wait)" if kind == WAIT else colours[kind]}'), name)),
                   class_='soft')
