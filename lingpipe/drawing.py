"""Timelines and curves, drawn by matplotlib. The import of this module is slow."""

import io
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import matplotlib
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure  # pyplot would retain figures, and may open a window
from matplotlib.ticker import MaxNLocator

# Names come from users, so a dollar sign begins no formula. The salt makes the files of equal figures equal.
_STYLE = {'font.size': 9, 'axes.titlesize': 10, 'text.parse_math': False, 'svg.fonttype': 'none',
          'svg.hashsalt': 'lingpipe', 'axes.spines.top': False, 'axes.spines.right': False}
_WIDTH, _ROW, _AROUND = 11.0, 0.3, 0.75  # inches: width of a picture, height of a row and of the space around rows
_MOST_HEIGHT = 20.0  # inches for the rows of a panel; a thousand rows are thinner
_LETTER = 4.6  # points
_MOST_PATHS = 2000  # above this number, blocks have no labels and are pixels in an SVG file
_MOST_NAMES, _MOST_MARKED = 64, 40


class Block(NamedTuple):
    """A bar on a row."""

    row: int  # index of its row
    kind: str  # key of the legend
    begin: float  # left end, in the unit of the axis
    end: float  # right end
    label: str = ''  # text inside it, if it has room


class Rows(NamedTuple):
    """A panel of named rows with blocks. Later blocks cover earlier blocks."""

    title: str
    names: list[str]
    blocks: list[Block]


@matplotlib.rc_context(_STYLE)
def rows(panels: Sequence[Rows], legend: Mapping[str, tuple[str, str]], unit: str,
         limit: float | None = None) -> Figure:
    """Draw panels below each other, all on one scale that starts at 0.

    Args:
        legend: name and colour of each kind of block.
        limit: position of a line across all rows, in `unit`; None: no line.
    """
    heights = [min(_ROW * len(panel.names), _MOST_HEIGHT) for panel in panels]
    figure = Figure((_WIDTH, sum(heights) + _AROUND * (len(panels) + 0.5)), layout='constrained')
    axes: Any = figure.subplots(len(panels), sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    extent = max([limit or 0.0, *(block.end for panel in panels for block in panel.blocks)]) or 1.0
    for axis, panel in zip(axes, panels):
        _draw_rows(axis, panel, legend, extent)
        if limit is not None:
            axis.axvline(limit, color='#c02020', label='limit')
    axes[-1].set(xlabel=unit, xlim=(0, 1.01 * extent))
    handles = {name: handle for axis in axes for handle, name in zip(*axis.get_legend_handles_labels())}
    figure.legend(handles.values(), handles, loc='outside lower center', ncols=len(handles), frameon=False)
    return figure


def _draw_rows(axis, panel, legend, extent):
    axis.set_title(panel.title, loc='left')
    axis.set(ylim=(len(panel.names) - 0.4, -0.6))
    named = range(0, len(panel.names), -(-len(panel.names) // _MOST_NAMES))
    axis.set_yticks(named, [panel.names[row] for row in named])
    axis.tick_params(left=False)
    for kind, (name, colour) in legend.items():
        corners = [[(begin, row - 0.4), (end, row - 0.4), (end, row + 0.4), (begin, row + 0.4)]
                   for row, _, begin, end, _ in (block for block in panel.blocks if block.kind == kind)]
        if corners:
            is_dense = len(corners) > _MOST_PATHS
            axis.add_collection(PolyCollection(
                corners, facecolors=colour, edgecolors='white', linewidths=0.0 if is_dense else 0.4, label=name,
                rasterized=is_dense), autolim=False)
    points = 0.8 * 72 * _WIDTH / extent
    for block in panel.blocks if len(panel.blocks) <= _MOST_PATHS else ():
        if block.label and points * (block.end - block.begin) > _LETTER * len(block.label) + 2:
            axis.text((block.begin + block.end) / 2, block.row, block.label, ha='center', va='center_baseline', size=7,
                      in_layout=False)


@matplotlib.rc_context(_STYLE)
def curves(title: str, series: Mapping[str, Sequence[tuple[int, float]]], unit: str = 'step') -> Figure:
    """Draw curves over steps. A value that is not finite leaves a gap.

    Args:
        series: {name of a curve: its pairs (step, value)}.
    """
    figure = Figure((4.8, 2.6), layout='constrained')
    axis = figure.subplots()
    for name, points in series.items():
        axis.plot(*zip(*points), marker='.' if len(points) <= _MOST_MARKED else None, linewidth=1.3, label=name)
    axis.set(title=title, xlabel=unit)
    axis.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axis.grid(color='#dddddd')
    axis.legend(frameon=False)
    return figure


def png(figure: Figure) -> bytes:
    """Return a figure as a PNG file."""
    return _saved(figure, 'png')


def svg(figure: Figure) -> bytes:
    """Return a figure as an SVG file, which stores text as text, not as outlines."""
    return _saved(figure, 'svg', metadata={'Date': None})  # no date: equal figures give equal bytes


@matplotlib.rc_context(_STYLE)
def _saved(figure, kind, metadata=None):
    file = io.BytesIO()
    figure.savefig(file, format=kind, dpi=110, metadata=metadata)
    return file.getvalue()
