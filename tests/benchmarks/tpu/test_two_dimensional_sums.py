"""The table of sums, compiled for the 16 chips of a v5e slice."""

import pytest

from tests import needs

pytestmark = [needs.xla_on_cpus, needs.stablehlo, needs.tpu_compiler]


@pytest.fixture
def tables(short_resnet, run_benchmark, table):
    printed = run_benchmark('tpu.two_dimensional_sums', '--topologies=v5e:4x4')
    return [table(paragraph) for paragraph in printed.split('\n\n')[:2]]


def test_the_compiler_sums_in_two_dimensions_by_itself(tables):
    listed, counted = tables
    plain, *by_hand = listed
    assert (plain['sum'], plain['groups x replicas']) == ('all-reduce', '1 x 16')
    assert {'x 4, y 4', 'y 4, x 4'} == set(plain['rings'].split('; '))
    assert [(each['collective'], each['rings']) for each in by_hand if each['sum'] == 'by hand, x first'] == [
        ('reduce-scatter', 'x 4'), ('all-reduce', 'y 4'), ('all-gather', 'x 4')]
    rows = {each['sum']: each for each in counted}
    assert [rows[name]['steps'] for name in rows] == ['12', '12', '24', '30']
    num_bytes = 4 * (7 * 7 * 3 * 64 + 2 * 64 + 64 * 1000 + 1000)  # of the stem and the head
    assert rows['all-reduce']['MB in turn'] == f'{num_bytes * 15 / 16 / 1e6:.1f}'
    assert rows['one ring, by formula']['MB in turn'] == f'{2 * num_bytes * 15 / 16 / 1e6:.1f}'
