"""Programs that sum over 2 x 2 chips of two cores, computed on CPU devices."""

import itertools

import numpy as np
import pytest

from tests import compiled_replicas, needs

SHAPES = [[3, 5], [7], [1]]
COORDINATES = [(x, y, 0, core) for y, x, core in itertools.product(range(2), repeat=3)]


@pytest.fixture
def torus_sums(load_benchmark):
    return load_benchmark('tpu.torus_sums')


def test_groups_are_the_lines_of_the_torus(torus_sums):
    (along_x, then_y), (along_y, then_x) = torus_sums.axes(COORDINATES)
    assert along_x.tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert then_y.tolist() == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert along_y.tolist() == [[0, 1, 4, 5], [2, 3, 6, 7]]
    assert then_x.tolist() == [[0, 2], [1, 3], [4, 6], [5, 7]]


@needs.xla_on_cpus
@needs.stablehlo
@needs.tpu_compiler
@pytest.mark.parametrize('num_parts', [0, 1, 2], ids=['plain', 'x first', 'halves'])
def test_every_replica_has_the_sum_over_all(torus_sums, num_parts, tmp_path):
    random = np.random.default_rng(0)
    given = [random.integers(-99, 99, (len(COORDINATES), *shape)).astype(np.float32) for shape in SHAPES]
    program = (torus_sums.two_dimensional(SHAPES, COORDINATES, num_parts) if num_parts
               else torus_sums.plain(SHAPES, COORDINATES))
    assert program.count('stablehlo.reduce_scatter') == program.count('stablehlo.all_gather') == num_parts
    results = compiled_replicas.run(program, given, len(COORDINATES), 1, tmp_path)
    for result, tensors in zip(results, given, strict=True):
        np.testing.assert_array_equal(result, np.broadcast_to(tensors.sum(0), tensors.shape))
