import numpy as np
import pytest

from lingpipe import schedules
from lingpipe.partition import balancing, layer_analysis, layer_memory, layer_profile, memory_model
from lingpipe.partition.layer_profile import LayerTime
from tests.partition.sums import memory_of


def stack(contractions, num_parameters):
    return [layer_analysis.LayerAnalysis(f'layer_{index}', 'Dense', size, layer_analysis.Flops(count, 0), None)
            for index, (count, size) in enumerate(zip(contractions, num_parameters))]


LAYERS = stack([4, 4, 4, 4, 8], [1, 1, 1, 9, 9])
TIMES = [LayerTime(0.5, 1.0, 0.25)] * 4 + [LayerTime(3.0, 9.0, 2.0)]


def cut(partition_by, layers=LAYERS, times=None, recompute='none', order=('gpipe', 2, 2), **memory):
    costs = layer_profile.StageCostModel(times or layer_profile.times_by_flops(layers), recompute)
    return balancing.partition_ends(partition_by, layers, costs, schedules.make_schedule(*order), **memory)


@pytest.mark.parametrize(
    'partition_by, times, ends',
    [('flops', None, [3, 5]), ('params', None, [4, 5]), ('time', TIMES, [4, 5]), ([1, 5], None, [1, 5])])
def test_the_cut_balances_what_partition_by_names(partition_by, times, ends):
    assert cut(partition_by, times=times) == ends


@pytest.mark.parametrize('name, recompute, passes', [
    ('gpipe', 'none', [0, 0, 0]), ('gpipe', 'selective', [0.3 * 3 / 4] * 3), ('gpipe', 'stage', [3 / 4] * 3),
    ('gpipe', 'layer', [0.5 + 3 / 4] * 3), ('1f1b', 'stage', [1, 1, 0]), ('1f1b', 'layer', [1.5, 1.5, 0.5]),
    ('zb_h1', 'stage', [1, 1, 0])])
def test_time_counts_recomputed_forward_passes(name, recompute, passes):
    """A backward action that directly follows its forward action repeats less."""
    costs = layer_profile.StageCostModel([LayerTime(2.0, 4.0, 1.0)] * 2, recompute)
    found = costs.of_layers(schedules.make_schedule(name, 3, 4))
    np.testing.assert_allclose(found, [[6 + 2 * number] * 2 for number in passes])


def test_the_last_stage_of_1f1b_gets_more_layers():
    """Stage 0 runs 3 layers forward twice and back, 3 (1 + 1 + 2) = 12; stage 1 runs 4 once, 4 (1 + 2) = 12."""
    assert cut('flops', stack([1] * 7, [1] * 7), recompute='stage', order=('1f1b', 2, 8)) == [3, 7]


def test_a_written_list_must_keep_to_the_memory_limit_too():
    memory = {'memory': memory_of([5, 5, 5, 5, 5]), 'memory_limit': 15}
    assert cut([3, 5], **memory) == [3, 5]
    with pytest.raises(ValueError, match=(
            r'partition_by=\[4, 5\] gives device 0 20 bytes to hold, more than memory_limit=15 bytes\. Set '
            r'partition_by=')):
        cut([4, 5], **memory)
    memory['memory'] = memory_of([10, 1, 5, 5, 1])
    with pytest.raises(ValueError, match='gives device 0 20 bytes'):
        cut([1, 2, 4, 5], order=('circular', 2, 2, 2), **memory)


def test_the_table_shows_time_and_memory_where_they_are_known():
    sizes = layer_memory.LayerMemory(weights=10, state=0, inputs=1, internals=3, outputs=0)
    memory = memory_model.MemoryModel([sizes] * 5, [2, 1], 'none', num_slots=1)
    table = balancing.Cut([3, 5], TIMES, memory).describe(LAYERS, ['a', 'b'])
    assert [(part.seconds, part.memory) for part in table] == [
        (4.5, 3 * (30 + 2 * 3) + 2 * 10), (13.5, 2 * (30 + 3) + 10)]
    assert [part.flops for part in table] == [12, 12]
    bare = balancing.Cut([3, 5]).describe(LAYERS, ['a', 'b'])
    assert [(part.seconds, part.memory) for part in bare] == [(None, None)] * 2
