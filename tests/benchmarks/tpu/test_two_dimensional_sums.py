"""What all-reduces send over links, by hand for 2 x 2 chips of two cores, and as compiled for 16 chips of a v5e."""

import itertools

import pytest

from tests import needs

COORDINATES = [(x, y, 0, core) for y, x, core in itertools.product(range(2), repeat=3)]
ADDITION = '%sum (a: f32[], b: f32[]) -> f32[] {\n  ROOT %c = f32[] add(%a, %b)\n}\n'
ENTRY = '\nENTRY %main (x: f32[40]) -> f32[40] {\n'
NOTE = ', config="\\nStrategyND{colors:2 phases:2 cores:{4 2},{4 2} n:0 dim_sizes:2,2 dim_used:{0 1},{1 0} d:2,1}"'
HLO = f'''HloModule program, replica_count=8
{ADDITION}{ENTRY}
  ROOT %all = (f32[20]{{0:T(128)}}, f32[5,4]{{1,0}}) all-reduce(%x, %y), to_apply=%sum{NOTE}
}}'''


@pytest.fixture
def sums(load_benchmark):
    return load_benchmark('tpu.two_dimensional_sums')


def test_a_sum_is_counted_as_the_compiler_notes_it(sums):
    found = sums.all_reduces(HLO, COORDINATES)
    assert [[tuple(ring) for ring in part] for part in found[0]] == [[(1, 4, 80), (0, 2, 20)], [(0, 4, 80), (1, 2, 20)]]
    # Each axis: twice 3/4 of 80 bytes; then twice 1/2 of 20 bytes, in two rings. Both at the same time.
    assert sums.traffic(found, COORDINATES) == ((160, 160), 160, 6 + 2)


def test_the_first_dimension_of_the_compiler_is_y(sums):
    wide = [(x, y, 0, core) for y, x, core in itertools.product(range(2), range(4), range(2))]
    found = sums.all_reduces(HLO.replace('{4 2},{4 2}', '{4 4},{8 2}').replace('sizes:2,2', 'sizes:2,4'), wide)
    # x: 80 bytes in a ring of 8; 20 bytes in rings of 4, two of them. y: 80 in a ring of 4; 10 in two rings of 2.
    assert sums.traffic(found, wide).link_bytes == (2 * 7 / 8 * 80 + 2 * 2 * 3 / 4 * 20, 120 + 20)


@pytest.mark.parametrize('hlo, message', [
    (HLO.replace(NOTE, ''), 'all is a all-reduce without a note of its rings along x and y'),
    (HLO.replace('all-reduce(', 'all-reduce-start('), 'all is a all-reduce-start. Counted are all-reduces'),
    (HLO.replace(ENTRY, '\n%fused (x: f32[40]) -> f32[40] {\n') + ENTRY, 'all is a part of another operation')])
def test_what_the_model_does_not_count_is_refused(sums, hlo, message):
    with pytest.raises(ValueError, match=message):
        sums.all_reduces(hlo, COORDINATES)


@needs.xla_on_cpus
@needs.stablehlo
@needs.tpu_compiler
def test_the_compiler_sums_in_two_dimensions_by_itself(short_resnet, run_benchmark, table):
    plain, ring = table(run_benchmark('tpu.two_dimensional_sums', '--topologies=v5e:4x4'))
    assert {'x 4, y 4', 'y 4, x 4'} == set(plain['rings'].split('; '))
    assert (plain['steps'], ring['steps']) == ('12', '30')
    num_bytes = 4 * (7 * 7 * 3 * 64 + 2 * 64 + 64 * 1000 + 1000)  # of the stem and the head
    assert plain['sequential MB'] == f'{num_bytes * 15 / 16 / 1e6:.1f}'
    assert ring['sequential MB'] == f'{2 * num_bytes * 15 / 16 / 1e6:.1f}'
