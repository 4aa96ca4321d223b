import keras
import numpy as np
import pytest
import tensorflow as tf

from lingpipe import layers
from lingpipe.partition import layer_memory
from lingpipe.pipeline import layer_sources
from lingpipe.planner import accelerators, resolution
from tests.planner import stacks


def test_sizes_between_those_that_were_traced_are_what_a_trace_gives():
    params = [layers.KerasParams(keras.layers.Dense, units=8, activation='gelu'), layers.KerasParams(
        keras.layers.BatchNormalization)]
    specs = tf.TensorSpec([12, 5, 6])
    stack = resolution.LayerStack(layer_sources.LayersOfParams(params), specs, [1, 12])
    for size in (1, 3, 4, 12):
        first, last = layer_memory.layer_memories(params, tf.TensorSpec([size, 5, 6]))
        expected = [
            first, last._replace(internals=last.internals + last.outputs, recomputed=last.recomputed + last.outputs)]
        for found, memory in zip(stack.memories(size), expected):
            assert found[:-2] == memory[:-2]
            np.testing.assert_allclose(found[-2:], memory[-2:], rtol=0.05)  # fullest moments are not quite on a line


def test_sizes_of_a_batch_of_a_billion_rows_are_in_proportion():
    params = [layers.KerasParams(keras.layers.Dense, units=8, activation='gelu')]
    stack = resolution.LayerStack(layer_sources.LayersOfParams(params), tf.TensorSpec([10**9, 6]), [1, 10**9])
    memory, larger = stack.memories(10**8)[0], stack.memories(10**9)[0]
    assert memory.outputs == 4 * 8 * 10**8 and memory.internals == pytest.approx(larger.internals / 10)


def test_equal_layers_are_looked_at_once(monkeypatch):
    traced = []
    trace = tf.function
    monkeypatch.setattr(tf, 'function', lambda *args, **kwargs: traced.append(1) or trace(*args, **kwargs))
    stack = stacks.setting(num_layers=500, sizes=[4]).stack
    stack.memories(4)
    assert len(stack) == 500 and len(traced) == 2  # once for operations, once for memory


def test_a_large_product_is_bound_by_arithmetic_and_a_small_one_by_memory():
    fast_memory = accelerators.Accelerator('x', 0, 1e9, 1e9, 1e15, 1e9)
    slow_memory = accelerators.Accelerator('x', 0, 1e15, 1e15, 1e3, 1e9)
    stack = stacks.setting().stack
    size = 4
    operations = size * (2 * stacks.WIDTH * stacks.WIDTH + stacks.WIDTH)
    np.testing.assert_allclose(
        stack.least_times(size, fast_memory, 'float32')[0], np.array([1, 2, 1]) * operations / 1e9)
    moved = stacks.WEIGHTS + 2 * size * stacks.ROW
    assert stack.least_times(size, slow_memory, 'float32')[0].forward_seconds == pytest.approx(moved / 1e3)
