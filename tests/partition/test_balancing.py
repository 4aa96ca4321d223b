"""The fields partition_by, memory_limit and profile_dir of a pipeline, from its params to its partitions."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from lingpipe.layers.keras_params import KerasParams
from lingpipe.partition import balancing, layer_profile
from lingpipe.partition.layer_profile import LayerTime
from lingpipe.pipeline import gpipe_layer
from tests.plain_stack import make_pipe

# Each layer has 4 * 4 + 4 weights of 4 bytes; inputs, outputs and its one internal tensor (relu's) are of 4 sizes an
# example.
LAYERS = [KerasParams(keras.layers.Dense, units=4, activation='relu') for _ in range(4)]
IMAGES, TARGETS = np.ones([8, 4], np.float32), np.ones([8, 4], np.float32)
WEIGHTS = 20 * 4


@pytest.fixture
def measured(monkeypatch):
    """Replace the measurement: the first layer is slow; hold the specs and device of every call."""
    calls = []

    def profile(layer_params, input_specs, device, cache_dir=None, analyses=None):
        calls.append((input_specs, device, cache_dir))
        return [LayerTime(1.0 if index else 6.0, 2.0 if index else 9.0, 1.0) for index in range(len(layer_params))]

    monkeypatch.setattr(layer_profile, 'profile_layers', profile)
    return calls


def names(pipe):
    return [len(part.layer_names) for part in pipe.partitions]


def test_the_cut_by_time_balances_what_was_measured_on_the_first_device(measured):
    pipe = make_pipe(LAYERS, num_partitions=2, num_micro_batches=4, partition_by='time', profile_dir='somewhere',
                     devices=['CPU:3', 'CPU:5'])
    pipe(IMAGES)
    assert measured == [(tf.TensorSpec([2, 4]), 'CPU:3', 'somewhere')]
    assert names(pipe) == [1, 3]
    assert [part.seconds for part in pipe.partitions] == [15.0, 9.0]
    assert [part.memory for part in pipe.partitions] == [None, None]


@pytest.mark.parametrize('num_slots, weights', [(0, 2), (1, 3), (2, 4), (None, 4)])
def test_memory_counts_weights_gradient_sums_slots_and_activations(num_slots, weights):
    pipe = make_pipe(LAYERS, num_partitions=2, num_micro_batches=4, recompute='none', memory_limit=1e6,
                     num_optimizer_slots=num_slots)
    pipe(IMAGES)
    of_micro_batch = 2 * 4 * 4  # bytes of a tensor of 2 examples and 4 features
    live = 4 * 3 * of_micro_batch  # the inputs of both layers, and the outputs, which relu's gradient reads
    # gradients of outputs, inside and of inputs, and those of both layers' weights
    at_work = 3 * of_micro_batch + 2 * WEIGHTS
    assert [part.memory for part in pipe.partitions] == [weights * 2 * WEIGHTS + live + at_work] * 2


@pytest.mark.parametrize('fields, message', [
    ({'partition_by': 'time'}, "partition_by='time' needs every size"),
    ({'memory_limit': 1e6}, 'memory_limit=1000000.0 needs every size')])
def test_an_open_batch_size_is_refused_with_what_to_do(fields, message):
    with pytest.raises(ValueError, match=message + r'.*\(None, 4\).*Set batch_size to the rows of a training batch'):
        make_pipe(LAYERS, **fields).build((None, 4))


def test_a_field_gives_the_batch_size_that_inputs_leave_open(measured):
    fields = {'num_partitions': 2, 'num_micro_batches': 2, 'partition_by': 'time', 'memory_limit': 1e6}
    pipe, other = make_pipe(LAYERS, batch_size=6, **fields), make_pipe(LAYERS, **fields)
    pipe.build((None, 4))
    other.build((6, 4))
    assert pipe.partitions == other.partitions


@pytest.mark.parametrize('batch, rows', [(8, 3), (9, 3), (2, 1)])
def test_the_largest_micro_batch_is_measured(batch, rows):
    """Three micro-batches of 8 rows have 2, 3 and 3; 2 rows make two micro-batches."""
    specs = {'a': tf.TensorSpec([batch, 5]), 'b': tf.TensorSpec([batch], tf.int32)}
    p = gpipe_layer.GPipeLayer.Params().Set(num_micro_batches=3)
    assert balancing.micro_batch_specs(specs, p, 'test') == {
        'a': tf.TensorSpec([rows, 5]), 'b': tf.TensorSpec([rows], tf.int32)}
