import itertools

import hypothesis
import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import strategies

from lingpipe.layers import keras_params
from lingpipe.pipeline import layer_memory, partition
from lingpipe.pipeline import schedule as schedules
from lingpipe.pipeline.layer_memory import LayerMemory

layers = keras.layers

SMALL = LayerMemory(weights=10, state=1, inputs=4, internals=20, outputs=6)
LARGE = LayerMemory(weights=100, state=0, inputs=6, internals=50, outputs=8)
LAST = LayerMemory(weights=30, state=0, inputs=8, internals=0, outputs=2)


def needs(estimate, partition_index, start, end):
    return int(estimate(*np.array([[partition_index], [start], [end]]))[0])


def measure(constructor, spec, **arguments):
    return layer_memory.layer_memories([keras_params.KerasParams(constructor, **arguments)], spec)[0]


def test_a_dense_layer_with_relu_keeps_nothing_besides_its_input_and_output():
    assert measure(layers.Dense, tf.TensorSpec([3, 5]), units=7, activation='relu') == LayerMemory(
        weights=4 * (5 * 7 + 7), state=0, inputs=4 * 3 * 5, internals=0, outputs=4 * 3 * 7, read_inputs=4 * 3 * 5)


def test_inputs_that_no_gradient_needs_are_not_read():
    assert measure(layers.Activation, tf.TensorSpec([3, 5]), activation='relu').read_inputs == 0
    assert measure(layers.MaxPooling1D, tf.TensorSpec([3, 6, 5])).read_inputs == 4 * 3 * 6 * 5


def test_a_dense_layer_with_softplus_keeps_what_it_activates():
    assert measure(layers.Dense, tf.TensorSpec([3, 5]), units=7, activation='softplus').internals == 4 * 3 * 7


def test_drop_out_keeps_its_mask():
    assert measure(layers.Dropout, tf.TensorSpec([3, 5]), rate=0.5).internals == 3 * 5


def test_moving_averages_are_state():
    memory = measure(layers.BatchNormalization, tf.TensorSpec([3, 5]))
    assert (memory.weights, memory.state) == (4 * 2 * 5, 4 * 2 * 5)


def test_an_embedding_of_integers():
    memory = measure(layers.Embedding, tf.TensorSpec([3, 5], tf.int32), input_dim=11, output_dim=4)
    assert (memory.weights, memory.inputs, memory.outputs) == (4 * 11 * 4, 4 * 3 * 5, 4 * 3 * 5 * 4)


def test_reshaping_keeps_nothing():
    assert measure(layers.Reshape, tf.TensorSpec([3, 6]), target_shape=(2, 3)).internals == 0


def test_half_precision_counts_half():
    memory = measure(layers.Dense, tf.TensorSpec([3, 5]), units=7, dtype='mixed_bfloat16')
    assert (memory.weights, memory.outputs) == (4 * (5 * 7 + 7), 2 * 3 * 7)


def test_layers_hand_their_shapes_on_and_equal_ones_are_traced_once():
    dense = keras_params.KerasParams(layers.Dense, units=5)
    pooled = keras_params.KerasParams(layers.GlobalAveragePooling1D)
    stack = [dense.Copy().Set(name='a'), dense.Copy().Set(name='b'), pooled]
    memories = layer_memory.layer_memories(stack, tf.TensorSpec([2, 3, 5]))
    assert memories[0] is memories[1]
    assert (memories[2].inputs, memories[2].outputs) == (4 * 2 * 3 * 5, 4 * 2 * 5)


def test_what_each_way_to_recompute_keeps():
    """With momentum there are three tensors for each weight. Partition 0 keeps four micro-batches, partition 1 one."""
    estimates = {recompute: layer_memory.MemoryEstimate([SMALL, LARGE, LAST], [4, 1], recompute, num_slots=1)
                 for recompute in layer_memory.RECOMPUTE}
    weights = 3 * 10 + 1 + 3 * 100
    assert needs(estimates['none'], 0, 0, 2) == weights + 4 * (4 + 20 + 6 + 50) + 2 * 8
    assert needs(estimates['stage'], 0, 0, 2) == weights + 3 * 4 + (4 + 20 + 6 + 50) + 2 * 8
    assert needs(estimates['layer'], 0, 0, 2) == weights + 3 * 4 + (4 + 6) + (50 + 2 * 8)
    assert needs(estimates['none'], 1, 2, 3) == 3 * 30 + 8 + 2 * 2
    assert needs(estimates['stage'], 1, 2, 3) == 3 * 30 + 8 + 2 * 2
    assert needs(estimates['layer'], 1, 2, 3) == 3 * 30 + 8 + 2 * 2


@pytest.mark.parametrize('num_slots, copies', [(0, 2), (1, 3), (2, 4)])
def test_an_optimizer_keeps_its_slots_beside_weights_and_gradient_sums(num_slots, copies):
    bare = LayerMemory(weights=100, state=7, inputs=0, internals=0, outputs=0)
    assert needs(layer_memory.MemoryEstimate([bare], [5], 'stage', num_slots), 0, 0, 1) == copies * 100 + 7


def test_a_run_counts_no_less_than_its_last_layers_alone():
    """An embedding turns small integers into large vectors; nine micro-batches of either wait."""
    embedding = LayerMemory(weights=1, state=0, inputs=1, internals=0, outputs=50)
    block = LayerMemory(weights=1, state=0, inputs=50, internals=0, outputs=50)
    estimate = layer_memory.MemoryEstimate([embedding, block], [9], 'stage', num_slots=0)
    assert needs(estimate, 0, 1, 2) == 2 + 9 * 50 + 100
    assert needs(estimate, 0, 0, 2) == needs(estimate, 0, 1, 2)
    assert needs(estimate, 0, 0, 1) == 2 + 9 * 1 + 100


@hypothesis.given(
    strategies.lists(strategies.tuples(*[strategies.integers(0, 30)] * 5), min_size=1, max_size=9),
    strategies.lists(strategies.integers(1, 9), min_size=1, max_size=3), strategies.sampled_from(layer_memory.RECOMPUTE))
@hypothesis.settings(deadline=None, max_examples=100)
def test_longer_runs_need_no_less_and_later_partitions_no_more(sizes, live, recompute):
    estimate = layer_memory.MemoryEstimate([LayerMemory(*row) for row in sizes], live, recompute, num_slots=1)
    for start, end in itertools.combinations(range(len(sizes) + 1), 2):
        whole = [needs(estimate, index, start, end) for index in range(len(live))]
        assert whole == sorted(whole, reverse=True)
        for inner in [(start + 1, end), (start, end - 1)] if end - start > 1 else []:
            assert needs(estimate, 0, *inner) <= whole[0]


@pytest.mark.parametrize('name, num_devices, num_micro_batches, num_virtual_stages, live', [
    ('gpipe', 3, 5, 1, [5, 5, 5]),
    ('1f1b', 4, 8, 1, [4, 3, 2, 1]),
    ('1f1b', 4, 2, 1, [2, 2, 2, 1]),
    ('zb_h1', 4, 8, 1, [4, 4, 4, 4]),
    ('interleaved_1f1b', 2, 4, 2, [4, 3, 2, 1])])
def test_micro_batches_that_a_schedule_keeps(name, num_devices, num_micro_batches, num_virtual_stages, live):
    schedule = schedules.make_schedule(name, num_devices, num_micro_batches, num_virtual_stages)
    assert layer_memory.live_micro_batches(schedule) == live


def test_a_cut_by_estimated_memory():
    """Without recomputation 1F1B keeps four micro-batches in partition 0, three in partition 1 and so on."""
    block = LayerMemory(weights=0, state=0, inputs=10, internals=0, outputs=0)
    live = layer_memory.live_micro_batches(schedules.make_schedule('1f1b', 4, 8))
    estimate = layer_memory.MemoryEstimate([block] * 16, live, 'none', num_slots=0)
    assert partition.balanced_partition_ends([1] * 16, 4) == [4, 8, 12, 16]
    assert partition.balanced_partition_ends([1] * 16, 4, estimate, memory_limit=120) == [3, 7, 11, 16]


def test_two_thousand_layers_over_64_partitions_of_limited_memory():
    generator = np.random.default_rng(0)
    stack = [LayerMemory(*row) for row in generator.integers(1, 100, [2000, 5]).tolist()]
    live = layer_memory.live_micro_batches(schedules.make_schedule('1f1b', 64, 128))
    estimate = layer_memory.MemoryEstimate(stack, live, 'stage', num_slots=2)
    ends = partition.balanced_partition_ends([1] * 2000, 64, estimate, memory_limit=15000)
    assert max(needs(estimate, k, start, end) for k, (start, end) in enumerate(zip([0, *ends], ends))) <= 15000
