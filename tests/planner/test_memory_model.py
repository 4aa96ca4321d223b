import itertools

import hypothesis
import numpy as np
from hypothesis import strategies

from lingpipe.pipeline import layer_memory
from lingpipe.pipeline.layer_memory import LayerMemory
from lingpipe.planner import memory_model

SMALL = LayerMemory(weights=10, state=1, inputs=4, internals=20, outputs=6)
LARGE = LayerMemory(weights=40, state=0, inputs=8, internals=60, outputs=8)


def transient(layers, recompute):
    return int(memory_model.MemoryModel(layers, [1], recompute, 0).transient(np.array([0]), np.array([len(layers)]))[0])


def test_a_quarter_of_what_is_kept_and_half_of_the_largest_layer_live_for_a_moment():
    assert transient([SMALL, LARGE], 'stage') == (4 + 20 + 8 + 60) / 4 + 60 / 2 + 40
    assert transient([SMALL, LARGE], 'none') == transient([SMALL, LARGE], 'stage')
    assert transient([SMALL, LARGE], 'layer') == 60 / 4 + 60 / 2 + 40


def test_where_weights_are_larger_than_activations_their_new_sums_count():
    heavy = LayerMemory(weights=1000, state=0, inputs=4, internals=0, outputs=4)
    assert transient([heavy] * 5, 'stage') == 5 * 1000 - 5 * 4 - 2 * 4


@hypothesis.given(strategies.lists(strategies.tuples(*[strategies.integers(0, 30)] * 5), min_size=1, max_size=8),
                  strategies.sampled_from(layer_memory.RECOMPUTE))
@hypothesis.settings(deadline=None, max_examples=60)
def test_longer_runs_need_no_less(sizes, recompute):
    model = memory_model.MemoryModel([LayerMemory(*row) for row in sizes], [3], recompute, num_slots=1)

    def needs(start, end):
        return int(model(*np.array([[0], [start], [end]]))[0])

    for start, end in itertools.combinations(range(len(sizes) + 1), 2):
        for inner in [(start + 1, end), (start, end - 1)] if end - start > 1 else []:
            assert needs(*inner) <= needs(start, end)
