import itertools

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies

from lingpipe.pipeline import layer_memory
from lingpipe.pipeline.layer_memory import LayerMemory
from lingpipe.planner import memory_model

FIRST = LayerMemory(weights=10, state=1, inputs=4, internals=20, outputs=8, read_inputs=4)
LAST = LayerMemory(weights=40, state=0, inputs=8, internals=60, outputs=6, read_inputs=0)


def needs(layers, live, recompute, num_slots=0):
    model = memory_model.MemoryModel(layers, [live], recompute, num_slots)
    return int(model(*np.array([[0], [0], [len(layers)]]))[0])


LASTING = 2 * (10 + 40) + 1


@pytest.mark.parametrize('recompute, others', [('none', 2 * (4 + 20 + 60)), ('stage', 2 * 4)])
def test_the_fullest_moment_is_the_last_layers_backward_pass_where_activations_are_large(recompute, others):
    at_work = 1.25 * (4 + 20) + 60 + 2 * 6 + 0.75 * 60 + 40  # kept before it, and by it; its work; its new gradients
    assert needs([FIRST, LAST], 3, recompute) == LASTING + others + at_work


def test_layer_by_layer_only_inputs_are_kept_and_one_layer_is_at_work():
    assert needs([FIRST, LAST], 3, 'layer') == LASTING + 2 * 4 + 4 + 8 + 2 * 6 + 2 * 60 + 40


def test_where_weights_are_large_the_fullest_moment_is_the_end_when_all_new_sums_are_there():
    heavy = LayerMemory(weights=1000, state=0, inputs=4, internals=0, outputs=4, read_inputs=4)
    assert needs([heavy] * 5, 1, 'stage') == 2 * 5000 + 4 + 2 * 4 + 5000


def test_slots_add_to_weights():
    assert needs([FIRST, LAST], 1, 'stage', num_slots=2) == needs([FIRST, LAST], 1, 'stage') + 2 * 50


@hypothesis.given(strategies.lists(strategies.tuples(*[strategies.integers(0, 30)] * 6), min_size=1, max_size=8),
                  strategies.lists(strategies.integers(1, 9), min_size=1, max_size=3),
                  strategies.sampled_from(layer_memory.RECOMPUTE))
@hypothesis.settings(deadline=None, max_examples=60)
def test_longer_runs_need_no_less_and_later_partitions_no_more(sizes, live, recompute):
    model = memory_model.MemoryModel([LayerMemory(*row) for row in sizes], live, recompute, num_slots=1)

    def of(index, start, end):
        return int(model(*np.array([[index], [start], [end]]))[0])

    for start, end in itertools.combinations(range(len(sizes) + 1), 2):
        whole = [of(index, start, end) for index in range(len(live))]
        assert whole == sorted(whole, reverse=True)
        for inner in [(start + 1, end), (start, end - 1)] if end - start > 1 else []:
            assert of(0, *inner) <= whole[0]
