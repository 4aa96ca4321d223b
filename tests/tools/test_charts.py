"""Drawings of the report, by what they show."""

import math

import pytest

from lingpipe.tools.report import charts, page
from lingpipe.tools.trace.trace_blocks import Block


def test_a_curve_goes_through_its_points_in_proportion():
    figure = charts.lines('loss', {'training': [(0, 4.0), (10, 2.0), (20, 0.0)]})
    (x0, y0), (x1, y1), (x2, y2) = points_of(figure)
    assert x1 - x0 == pytest.approx(x2 - x1, abs=0.2) and x1 > x0
    assert y1 - y0 == pytest.approx(y2 - y1, abs=0.2) and y1 > y0  # smaller values stand lower


def test_values_that_are_not_finite_are_left_out():
    figure = charts.lines('loss', {'training': [(0, 1.0), (1, math.nan), (2, math.inf), (3, 2.0)]})
    assert len(points_of(figure)) == 2
    assert charts.lines('loss', {'training': [(0, math.nan)]}).find('p').text == 'No value is finite.'


def test_one_point_and_equal_values_are_drawn():
    for points in ([(5, 1.0)], [(0, 0.0), (1, 0.0)], [(0, -3.0), (1, -3.0)]):
        assert all(map(math.isfinite, sum(points_of(charts.lines('x', {'a': points})), ())))


@pytest.mark.parametrize('values', [
    (-1e308, 1e308), (0.0, 5e-324), (1e-320, 2e-320), (1e-300, math.nextafter(1e-300, 1)), (1e299, -1e299),
    (1.0, math.nextafter(1, 2))])
def test_the_largest_and_the_least_numbers_are_drawn_or_left_out(values):
    figure = charts.lines('loss', {'training': [*enumerate(values), (2**63 - 1, 1.0), (-2**63, 1.0)]})
    assert all(map(math.isfinite, sum(points_of(figure), ())))


def test_long_curves_keep_their_peaks_and_ends():
    points = [(step, math.sin(step / 500)) for step in range(100_000)]
    points[77_777] = (77_777, 9.0)
    points[33_333] = (33_333, -9.0)
    kept = charts.thinned(points)
    assert len(kept) <= 410 and kept == sorted(kept)
    assert {(77_777, 9.0), (33_333, -9.0), points[0], points[-1]} <= set(kept)


@pytest.mark.parametrize(('least', 'greatest'), [(0, 1), (-3.2, 7.9), (1e-9, 2e-9), (0, 123456), (0.9412, 0.9413)])
def test_ticks_are_a_few_round_numbers_within_the_range(least, greatest):
    found = charts.ticks(least, greatest)
    assert 2 <= len(found) <= 6 and all(least - 1e-12 <= tick <= greatest * (1 + 1e-9) for tick in found)
    distances = [later - earlier for earlier, later in zip(found, found[1:])]
    assert distances == pytest.approx([distances[0]] * len(distances))
    assert f'{distances[0]:.0e}'[0] in '125'


def test_blocks_stand_on_their_rows_and_short_ones_take_no_room():
    blocks = [Block(0, 'F', 0.0, 0.5, '3'), Block(1, 'B', 0.5, 1.0), Block(1, 'B', 1.0, 1.00001)]
    found = charts.rows(['a', 'b'], blocks, 1.0, {'F': '#111111', 'B': '#222222'}, 'x')
    first, second = found.iter('rect')
    assert (first.get('fill'), second.get('fill')) == ('#111111', '#222222')
    assert float(first.get('width')) == pytest.approx(float(second.get('width')), abs=2)
    assert float(second.get('y')) > float(first.get('y'))
    assert [text.text for text in found.iter('text')] == ['a', 'b', '3']


def test_blocks_without_extent_take_no_room():
    assert not list(charts.rows(['a'], [Block(0, 'F', 0, 0)], 0, {'F': '#111111'}, 'x').iter('rect'))


def test_columns_of_numbers_are_set_to_the_right():
    found = page.table(['name', 'count'], [['a', '1,234'], ['b', '5.5 %']])
    assert [cell.get('class') for cell in found.iter('td')] == [None, 'number'] * 2


def points_of(figure):
    return [tuple(map(float, pair.split(','))) for pair in figure.find('.//polyline').get('points').split()]
