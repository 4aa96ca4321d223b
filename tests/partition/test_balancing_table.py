import pytest

from lingpipe import schedules
from lingpipe.partition import balancing, layer_analysis, layer_memory, memory_model
from lingpipe.partition.layer_profile import LayerTime


def stack(contractions, num_parameters):
    return [layer_analysis.LayerAnalysis(f'layer_{index}', 'Dense', size, 0, layer_analysis.Flops(count, 0), None)
            for index, (count, size) in enumerate(zip(contractions, num_parameters))]


LAYERS = stack([4, 4, 4, 4, 8], [1, 1, 1, 9, 9])
TIMES = [LayerTime(0.5, 1.0, 0.25)] * 4 + [LayerTime(3.0, 9.0, 2.0)]


@pytest.mark.parametrize(
    'partition_by, ends', [('flops', [3, 5]), ('params', [4, 5]), ('time', [4, 5]), ([1, 5], [1, 5])])
def test_the_cut_balances_what_partition_by_names(partition_by, ends):
    assert balancing.partition_ends(LAYERS, 2, partition_by, layer_times=TIMES) == ends


def test_time_counts_recomputed_forward_passes():
    assert balancing.layer_costs(LAYERS, 'time', TIMES, [1]).tolist() == [[2, 2, 2, 2, 15]]
    assert balancing.layer_costs(LAYERS, 'time', TIMES, [2, 0]).tolist() == [[2.5] * 4 + [18], [1.5] * 4 + [12]]


@pytest.mark.parametrize('name, recompute, passes', [
    ('gpipe', 'none', [0, 0, 0]), ('gpipe', 'stage', [3 / 4] * 3), ('gpipe', 'layer', [7 / 4] * 3),
    ('1f1b', 'stage', [1, 1, 0]), ('1f1b', 'layer', [2, 2, 1]), ('zb_h1', 'stage', [1, 1, 0])])
def test_stages_whose_backward_follows_their_forward_pass_recompute_less(name, recompute, passes):
    assert balancing.extra_forwards(schedules.make_schedule(name, 3, 4), recompute) == passes


def test_the_last_stage_of_1f1b_gets_more_layers():
    """Stage 0 runs 3 layers forward twice and back, 3 (1 + 1 + 2) = 12; stage 1 runs 4 once, 4 (1 + 2) = 12."""
    layers = stack([1] * 7, [1] * 7)
    passes = balancing.extra_forwards(schedules.make_schedule('1f1b', 2, 8), 'stage')
    assert balancing.layer_costs(layers, 'flops', extra_forwards=passes).tolist() == [[4] * 7, [3] * 7]
    assert balancing.partition_ends(layers, 2, 'flops', extra_forwards=passes) == [3, 7]


def test_a_written_list_must_keep_to_the_memory_limit_too():
    memory = [5, 5, 5, 5, 5]
    assert balancing.partition_ends(LAYERS, 2, [3, 5], memory=memory, memory_limit=15) == [3, 5]
    with pytest.raises(ValueError, match=(
            r'partition_by=\[4, 5\] gives device 0 20 bytes to hold, more than memory_limit=15 bytes\. Set '
            r'partition_by=')):
        balancing.partition_ends(LAYERS, 2, [4, 5], memory=memory, memory_limit=15)
    with pytest.raises(ValueError, match='gives device 0 20 bytes'):
        balancing.partition_ends(LAYERS, 4, [1, 2, 4, 5], memory=[10, 1, 5, 5, 1], memory_limit=15,
                                 devices=[0, 1, 0, 1])


def test_the_table_shows_time_and_memory_where_they_are_known():
    sizes = layer_memory.LayerMemory(weights=10, state=0, inputs=1, internals=3, outputs=0)
    memory = memory_model.MemoryModel([sizes] * 5, [2, 1], 'none', num_slots=1)
    table = balancing.Cut([3, 5], TIMES, memory).describe(LAYERS, ['a', 'b'])
    assert [(part.seconds, part.memory) for part in table] == [
        (4.5, 3 * (30 + 2 * 3) + 2 * 10), (13.5, 2 * (30 + 3) + 10)]
    assert [part.flops for part in table] == [12, 12]
    bare = balancing.Cut([3, 5]).describe(LAYERS, ['a', 'b'])
    assert [(part.seconds, part.memory) for part in bare] == [(None, None)] * 2
