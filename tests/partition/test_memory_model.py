import itertools

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies

from lingpipe import schedules
from lingpipe.partition import exact_cut, layer_memory, memory_model
from lingpipe.partition.layer_memory import LayerMemory

FIRST = LayerMemory(weights=10, state=1, inputs=4, internals=20, outputs=8, read_inputs=4, backward=50, recomputed=65)
LAST = LayerMemory(weights=40, state=0, inputs=8, internals=60, outputs=6, read_outputs=3, backward=90, recomputed=130)
LASTING = 2 * (10 + 40) + 1


def needs(model, index, start, end):
    return int(model(*np.array([[index], [start], [end]]))[0])


def of_both(live, recompute, num_slots=0):
    return needs(memory_model.MemoryModel([FIRST, LAST], [live], recompute, num_slots), 0, 0, 2)


@pytest.mark.parametrize('recompute, others', [('none', 2 * (4 + 20 + 60 + 3)), ('stage', 2 * 4)])
def test_all_that_a_backward_pass_reads_is_there_until_it_ends(recompute, others):
    assert of_both(3, recompute) == LASTING + others + (4 + 20 + 60 + 3) + max(90, 50 + 40)


def test_layer_by_layer_only_inputs_are_kept_and_one_layer_is_at_work():
    assert of_both(3, 'layer') == LASTING + 2 * 4 + max(4 + 8 + 130, 4 + 65)


def test_with_large_weights_memory_peaks_at_the_end():
    """All new gradient sums are there by then."""
    heavy = LayerMemory(weights=1000, state=0, inputs=4, internals=0, outputs=4, read_inputs=4, backward=1008)
    model = memory_model.MemoryModel([heavy] * 5, [1], 'stage', 0)
    assert needs(model, 0, 0, 5) == 2 * 5000 + 5 * 4 + 4000 + 1008


@pytest.mark.parametrize('recompute, whole, alone', [
    ('none', 3 * (4 + 4), 3 * (4 + 4)), ('stage', 2 * 12 + 4 + 4, 2 * 8 + 4 + 4),
    ('layer', 2 * 12 + 12 + 8 - 5, 2 * 8 + 8)])
def test_repeated_tensors_count_again_where_a_partition_begins(recompute, whole, alone):
    first = LayerMemory(weights=0, state=0, inputs=12, internals=0, outputs=8, read_inputs=4)
    second = LayerMemory(
        weights=0, state=0, inputs=8, internals=4, outputs=8, read_inputs=4, repeated_inputs=5, repeated_reads=4)
    model = memory_model.MemoryModel([first, second], [3], recompute, 0)
    assert needs(model, 0, 0, 2) == whole
    assert needs(model, 0, 1, 2) == alone


@hypothesis.given(strategies.lists(strategies.tuples(*[strategies.integers(0, 30)] * 9), min_size=1, max_size=8),
                  strategies.lists(strategies.integers(1, 9), min_size=1, max_size=3),
                  strategies.sampled_from(['none', 'stage', 'layer']))
@hypothesis.settings(deadline=None, max_examples=60)
def test_longer_runs_need_no_less_and_later_partitions_no_more(sizes, live, recompute):
    memories = [_memory(*row) for row in sizes]
    model = memory_model.MemoryModel(memories, live, recompute, num_slots=1)
    for start, end in itertools.combinations(range(len(sizes) + 1), 2):
        whole = [needs(model, index, start, end) for index in range(len(live))]
        assert whole == sorted(whole, reverse=True)
        for inner in [(start + 1, end), (start, end - 1)] if end - start > 1 else []:
            assert needs(model, 0, *inner) <= whole[0]


def _memory(weights, state, inputs, internals, outputs, share_read, share_again, backward, recomputed):
    """A consistent layer: what is read is part of what enters, and what is repeated part of that; weight gradients at
    work."""
    read, again = min(inputs, share_read), min(inputs, share_again)
    return LayerMemory(weights, state, inputs, internals, outputs, read, 0, again, min(read, share_again),
                       backward + weights, recomputed + weights)


def test_a_cut_by_memory():
    """Without recomputation 1F1B keeps four micro-batches in partition 0, three in partition 1 and so on."""
    block = LayerMemory(weights=0, state=0, inputs=10, internals=10, outputs=0)
    live = layer_memory.live_micro_batches(schedules.make_schedule('1f1b', 4, 8))
    model = memory_model.MemoryModel([block] * 16, live, 'none', num_slots=0)
    assert exact_cut.balanced_partition_ends([1] * 16, 4) == [4, 8, 12, 16]
    assert exact_cut.balanced_partition_ends([1] * 16, 4, model, memory_limit=120) == [3, 7, 11, 16]
