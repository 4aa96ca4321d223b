"""Bytes over links, against what is computed by hand for 2 x 2 chips of two cores."""

import itertools

import pytest

COORDINATES = [(x, y, 0, core) for y, x, core in itertools.product(range(2), repeat=3)]
ADDITION = '%sum (a: f32[], b: f32[]) -> f32[] {\n  ROOT %c = f32[] add(%a, %b)\n}\n'
ENTRY = '\nENTRY %main (x: f32[40]) -> f32[40] {\n'
BY_HAND = f'''HloModule program, replica_count=8
{ADDITION}{ENTRY}
  %own = f32[10]{{0}} reduce-scatter(%x), replica_groups={{{{0,1,2,3}},{{4,5,6,7}}}}, dimensions={{0}}, to_apply=%sum
  %part = f32[10]{{0}} all-reduce(%own), replica_groups={{{{0,4}},{{1,5}},{{2,6}},{{3,7}}}}, to_apply=%sum
  ROOT %all = f32[40]{{0}} all-gather(%part), replica_groups={{{{0,1,2,3}},{{4,5,6,7}}}}, dimensions={{0}}
}}'''
OVER_ALL = 'replica_groups={{0,1,2,3,4,5,6,7}}'
BY_XLA = f'''HloModule program, replica_count=8
{ADDITION}{ENTRY}
  ROOT %all = (f32[20]{{0:T(128)}}, f32[5,4]{{1,0}}) all-reduce(%x, %y), {OVER_ALL}, to_apply=%sum
}}'''
NOTE = ', config="\\nStrategyND{colors:2 phases:2 cores:{4 2},{4 2} n:0 dim_sizes:2,2 dim_used:{0 1},{1 0} d:2,1}"'


@pytest.fixture
def link_traffic(load_benchmark):
    return load_benchmark('tpu.link_traffic')


def with_note(hlo):
    return hlo.replace('to_apply=%sum\n}', f'to_apply=%sum{NOTE}\n}}')


def test_sums_along_an_axis_are_rings_that_share_its_links(link_traffic):
    found = link_traffic.collectives(BY_HAND, COORDINATES)
    assert [(each.kind, len(each.groups), each.num_bytes) for each in found] == [
        ('reduce-scatter', 2, 160), ('all-reduce', 4, 40), ('all-gather', 2, 160)]
    # Along x 3/4 of 160 bytes twice. Along y twice 1/2 of 40 bytes, in two rings, one for each core of a chip.
    assert link_traffic.traffic(found, COORDINATES) == ((2 * 120, 80), 2 * 120 + 80, 3 + 2 + 3)


def test_a_sum_over_all_is_counted_as_the_compiler_notes_it(link_traffic):
    found = link_traffic.collectives(with_note(BY_XLA), COORDINATES)
    assert [[(ring.axis, ring.size, ring.num_bytes) for ring in part] for part in found[0].parts] == [
        [(1, 4, 80), (0, 2, 20)], [(0, 4, 80), (1, 2, 20)]]
    # Each axis: twice 3/4 of 80 bytes; then twice 1/2 of 20 bytes, in two rings. Both at the same time.
    assert link_traffic.traffic(found, COORDINATES) == ((160, 160), 160, 6 + 2)


def test_the_first_dimension_of_the_compiler_is_y(link_traffic):
    wide = [(x, y, 0, core) for y, x, core in itertools.product(range(2), range(4), range(2))]
    note = NOTE.replace('{4 2},{4 2}', '{4 4},{8 2}').replace('sizes:2,2', 'sizes:2,4')
    hlo = BY_XLA.replace('to_apply=%sum\n}', f'to_apply=%sum{note}\n}}').replace('6,7}', '6,7,8,9,10,11,12,13,14,15}')
    found = link_traffic.collectives(hlo, wide)
    # x: 80 bytes in a ring of 8; 20 bytes in rings of 4, two of them. y: 80 in a ring of 4; 10 in two rings of 2.
    assert link_traffic.traffic(found, wide).link_bytes == (2 * 7 / 8 * 80 + 2 * 2 * 3 / 4 * 20, 120 + 20)


@pytest.mark.parametrize('hlo, message', [
    (BY_XLA, 'all is a all-reduce over groups that are no lines of the torus, and the compiler notes no rings'),
    (with_note(BY_XLA).replace(OVER_ALL, 'replica_groups=[1,8]<=[8]'), 'all is a all-reduce without a list of groups'),
    (BY_HAND.replace('all-reduce(', 'all-reduce-start('), 'part is a all-reduce-start. Counted are reduce-scatter, '),
    (BY_HAND.replace(ENTRY, '\n%fused (x: f32[40]) -> f32[40] {\n') + ENTRY, 'own is a part of another operation')])
def test_what_the_model_does_not_count_is_refused(link_traffic, hlo, message):
    with pytest.raises(ValueError, match=message):
        link_traffic.collectives(hlo, COORDINATES)


def test_a_slice_of_three_axes_is_refused(link_traffic):
    with pytest.raises(ValueError, match='three axes'):
        link_traffic.collectives(BY_HAND, [*COORDINATES, (0, 0, 1, 0)])
