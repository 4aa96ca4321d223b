"""Pictures by what they show."""

import math

import numpy as np
import pytest

from lingpipe import drawing
from lingpipe.drawing import Block, Rows

LEGEND = {'F': ('forward', '#112233'), 'B': ('backward', '#445566')}


def test_a_block_is_on_its_row_from_its_begin_to_its_end():
    blocks = [Block(0, 'F', 0.0, 0.5, '3'), Block(1, 'B', 0.5, 1.0), Block(1, 'B', 1.0, 1.25, 'too long for it ' * 9)]
    axis, = drawing.rows([Rows('step', ['a', 'b'], blocks)], LEGEND, 'ms').axes
    forward, backward = axis.collections
    assert [found.get_label() for found in axis.collections] == ['forward', 'backward']
    assert forward.get_facecolor()[0] * 255 == pytest.approx([0x11, 0x22, 0x33, 255])
    boxes = [path.get_extents() for path in (*forward.get_paths(), *backward.get_paths())]
    assert [(box.x0, box.x1, round(box.y0 + box.y1) / 2) for box in boxes] == [(0, .5, 0), (.5, 1, 1), (1, 1.25, 1)]
    assert [text.get_text() for text in axis.texts] == ['3']
    assert (axis.get_xlabel(), axis.get_title(loc='left')) == ('ms', 'step')


def test_a_curve_goes_through_its_points_and_leaves_gaps():
    points = [(0, 1.0), (1, math.nan), (2, math.inf), (3, 2.0)]
    figure = drawing.curves('loss', {'training': points, 'test': [(5, 1.0)]})
    training, test = figure.axes[0].lines
    np.testing.assert_array_equal(training.get_xydata(), points)
    assert [text.get_text() for text in figure.axes[0].get_legend().get_texts()] == ['training', 'test']
    drawing.svg(figure)


def test_equal_figures_are_equal_files_and_names_are_no_formulas():
    first, second = (drawing.svg(drawing.curves('a $b$ <c>', {'x': [(0, 1.0), (1, 2.0)]})) for _ in range(2))
    assert first == second and b'a $b$ &lt;c&gt;' in first
