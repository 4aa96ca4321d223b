import gc
import weakref

import numpy as np
import pytest
import tensorflow as tf

from lingpipe.placements import tpu_replicas
from tests import virtual_tpu


@pytest.mark.parametrize('mesh, num_stages, expected', [
    ([2, 2, 1, 2], 1, [1, 1, 1, 1]), ([2, 2, 1, 2], 2, [1, 1, 1, 2]), ([2, 2, 1, 2], 4, [1, 2, 1, 2]),
    ([2, 2, 1, 2], 8, [2, 2, 1, 2]), ([2, 2, 1, 1], 2, [1, 2, 1, 1]), ([4, 4, 1, 1], 4, [2, 2, 1, 1]),
    ([4, 4, 4, 1], 8, [2, 2, 2, 1]), ([4, 4, 1, 2], 16, [2, 4, 1, 2])])
def test_a_replica_is_the_most_compact_box(mesh, num_stages, expected):
    assert tpu_replicas.computation_shape(mesh, num_stages) == expected


def test_a_number_of_stages_that_fills_no_box_is_refused():
    with pytest.raises(ValueError, match=r'num_partitions=3 cores .* Set num_partitions to one of \[1, 2, 4, 8\]'):
        tpu_replicas.computation_shape([2, 2, 1, 2], 3)


@pytest.mark.parametrize('num_stages', [2, 4])
def test_replicas_share_no_core_and_use_all(num_stages):
    assignment = tpu_replicas.assign_cores(virtual_tpu.topology(), num_stages)
    assert (assignment.num_replicas, assignment.num_cores_per_replica) == (8 // num_stages, num_stages)
    cores = assignment.core_assignment.reshape(-1, 4)
    assert len(np.unique(cores, axis=0)) == 8


@pytest.mark.parametrize('num_stages', [2, 4, 8])
def test_neighbouring_stages_are_neighbours_in_the_torus(num_stages):
    assignment = tpu_replicas.assign_cores(virtual_tpu.topology(), num_stages)
    chips = assignment.core_assignment[..., :3]
    assert np.abs(np.diff(chips, axis=1)).sum(-1).max() <= 1


def test_an_iterator_is_not_deleted_before_the_cores():
    cores = virtual_tpu.make_cores(2)
    iterator = weakref.ref(cores.distribute(lambda share: tf.data.Dataset.from_tensors(tf.zeros([8])).repeat()))
    gc.collect()
    assert iterator() is not None
