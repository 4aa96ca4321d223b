import gc
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf

from lingpipe.layers import keras_params
from lingpipe.partition import layer_analysis, layer_profile
from lingpipe.partition.layer_profile import LayerTime

DEVICE = '/device:CPU:3'
INPUTS = tf.TensorSpec([2, 4])


def dense(units, name, **arguments):
    return keras_params.KerasParams(keras.layers.Dense, units=units, name=name, **arguments)


STACK = [dense(4, 'a'), dense(4, 'b'), dense(7, 'c'), dense(4, 'd')]


@pytest.fixture
def measured(monkeypatch):
    """Replace the measurement by times that count up; hold the names of the layers measured."""
    names = []

    def measure(job, device):
        names.append(job.make_layer().name)
        return LayerTime(1.0 * len(names), 10.0 * len(names), 0.5 * len(names))

    monkeypatch.setattr(layer_profile, '_profile', measure)
    return names


@pytest.fixture
def calls(monkeypatch):
    """Run what would be measured once; hold the list of results, (forward, both, backward from inputs) for each
    layer."""
    results = []

    def run(functions):
        results.append([function() for function in functions])
        return [1.0, 3.0, 2.75]

    monkeypatch.setattr(layer_profile, '_median_seconds', run)
    return results


def test_every_layer_gets_its_time():
    times = layer_profile.profile_layers(STACK, INPUTS, DEVICE)
    assert len(times) == len(STACK)
    assert all(time.forward_seconds >= time.recomputed_seconds >= 0 and time.backward_seconds >= 0 for time in times)
    assert all(time.forward_seconds > 0 for time in times)
    assert times[0] == times[1]


def test_equal_layers_are_measured_once_and_layers_of_other_inputs_again(measured):
    times = layer_profile.profile_layers(STACK, INPUTS, DEVICE)
    assert measured == ['a', 'c', 'd']  # d is as a, on seven features
    assert times == [LayerTime(1, 10, 0.5), LayerTime(1, 10, 0.5), LayerTime(2, 20, 1), LayerTime(3, 30, 1.5)]


def test_passes_run_on_the_device_with_whole_micro_batches(calls):
    assert layer_profile.profile_layers([dense(3, 'a')], INPUTS, DEVICE) == [LayerTime(1.0, 2.0, 0.75)]
    (forward, both, backward), = calls
    assert [tensor.shape.as_list() for tensor in forward] == [[2, 3]]
    assert [tensor.shape.as_list() for tensor in both] == [[2, 3], [2, 4], [4, 3], [3]]
    assert [tensor.shape.as_list() for tensor in backward] == [[2, 4], [4, 3], [3]]
    assert {tensor.device[-len(DEVICE):] for tensor in forward + both + backward} == {DEVICE}


def test_gradients_are_computed_even_inside_a_graph_or_under_a_tape(calls):
    with tf.GradientTape(), tf.init_scope():
        layer_profile.profile_layers([dense(3, 'a')], INPUTS, DEVICE)
    tf.function(lambda: layer_profile.profile_layers([dense(3, 'b')], INPUTS, DEVICE) and None, autograph=False)()
    assert len(calls) == 2
    assert all(np.abs(tensor).max() > 0 for _, both, _ in calls for tensor in both[1:])


def test_weights_of_one_layer_at_a_time_exist(monkeypatch, calls):
    alive, most = [], []
    build_layer = layer_analysis.build_layer

    def counting_build(layer, specs):
        build_layer(layer, specs)
        if isinstance(layer.kernel.value, tf.Variable):  # not while it is merely analysed
            gc.collect()
            alive.append(weakref.ref(layer.kernel.value))
            most.append(sum(reference() is not None for reference in alive))

    monkeypatch.setattr(layer_analysis, 'build_layer', counting_build)
    layer_profile.profile_layers([dense(units, f'layer_{units}') for units in (3, 4, 5)], INPUTS, DEVICE)
    gc.collect()
    assert most == [1, 1, 1] and not any(reference() for reference in alive)


def test_a_second_start_measures_nothing(tmp_path, measured, monkeypatch):
    monkeypatch.setenv('HOME', str(tmp_path))
    folder = '~/new'
    first = layer_profile.profile_layers(STACK, INPUTS, DEVICE, folder)
    measured.clear()
    assert layer_profile.profile_layers(STACK, INPUTS, DEVICE, folder) == first
    assert layer_profile.profile_layers(STACK[:1], INPUTS, '/device:CPU:0', folder) == first[:1]
    assert measured == [] and (tmp_path / 'new/layer_times.json').exists()


@pytest.mark.parametrize('change', ['rows', 'dtype policy', 'kind of device', 'version'])
def test_other_circumstances_are_measured_again(tmp_path, measured, monkeypatch, change):
    layer_profile.profile_layers(STACK[:1], INPUTS, DEVICE, str(tmp_path))
    if change == 'dtype policy':
        monkeypatch.setattr(keras.config, 'dtype_policy', lambda: keras.DTypePolicy('float64'))
    if change == 'kind of device':
        monkeypatch.setattr(tf.config.experimental, 'get_device_details', lambda device: {'device_name': 'another'})
    if change == 'version':
        monkeypatch.setattr(tf, '__version__', '0.0')
    layer_profile.profile_layers(STACK[:1], tf.TensorSpec([3 if change == 'rows' else 2, 4]), DEVICE, str(tmp_path))
    assert measured == ['a', 'a']
