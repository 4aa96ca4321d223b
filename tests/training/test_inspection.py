import pathlib

import keras
import pytest
import tensorflow as tf

import lingpipe
from lingpipe import layers
from lingpipe.pipeline import gpipe_layer
from lingpipe.training import inspection, planning


@pytest.fixture
def body_params():
    return gpipe_layer.GPipeLayer.Params().Set(name='body', num_partitions=2, partition_by=[1, 3], layers=[
        layers.KerasParams(keras.layers.Conv2D, name='first', filters=4, kernel_size=3, padding='same'),
        layers.KerasParams(keras.layers.Flatten),
        layers.KerasParams(keras.layers.Dense, units=10)])


DEVICES = ['/job:localhost/replica:0/task:0/device:GPU:0', '/job:worker/replica:0/task:1/device:GPU:3']


def rows(text):
    """The words of every line."""
    return [line.split() for line in text.splitlines()]


def test_every_layer_has_a_row_with_cost_partition_and_device(body_params):
    told = rows(inspection.model_analysis(body_params, tf.TensorSpec([32, 8, 8, 1]), DEVICES))
    # A multiplication and an addition are two operations, a bias one more each: 3*3*1*4 weights at 64 places.
    first = 64 * 4 * (2 * 9 + 1)
    dense = 10 * (2 * 256 + 1)
    assert told[2] == ['first', 'Conv2D', '(8,', '8,', '4)', '40', f'{first / 1e6:.1g}', '0', 'GPU:0']
    assert told[3][:3] == ['flatten_1', 'Flatten', '(256,)']
    assert told[4] == [
        'dense_2', 'Dense', '(10,)', '2,570', f'{dense / 1e6:.1g}', '1', 'worker:1/GPU:3']
    assert told[-1][:3] == ['2,610', 'parameters,', '0.000']


def test_every_partition_has_a_row_with_its_layers_and_share(body_params):
    text = inspection.model_analysis(body_params, tf.TensorSpec([32, 8, 8, 1]), DEVICES)
    told = rows(text.split('\n\n')[1])
    first, second = 64 * 4 * 19, 10 * 513
    assert told[2] == ['0', 'GPU:0', 'first', '1', '40', '0.005', f'{2 * first / (first + second):.2f}']
    assert told[3] == ['1', 'worker:1/GPU:3', 'flatten_1', '..', 'dense_2', '2', '2,570', '0.005',
                       f'{2 * second / (first + second):.2f}']


def test_it_shows_the_same_as_the_model_that_was_built(finished, tiny):
    params = tiny.params()
    devices = ['CPU:0', 'CPU:1']
    text = inspection.model_analysis(params.task.body, tf.TensorSpec([32, 8, 8, 1]), devices)
    assert text + '\n' == (pathlib.Path(finished.logdir) / 'control/model_analysis.txt').read_text()


def small_model():
    return keras.Sequential([keras.Input([4]), keras.layers.Dense(6, name='low'), keras.layers.BatchNormalization(),
                             keras.layers.Dense(5, name='high')])


def test_what_is_frozen_and_what_is_trained_are_both_counted():
    source = lingpipe.KerasModelParams(small_model).Set(lora_rank=2, lora_layers=['low'])
    body = gpipe_layer.GPipeLayer.Params().Set(name='body', num_partitions=2, model=source)
    plain, trained = small_model(), 4 * 2 + 2 * 6
    total = trained + sum(variable.numpy().size for variable in plain.trainable_variables)
    specs, words = tf.TensorSpec([2, 4]), f'{total} parameters, of which {trained} are trained'
    layer, partition, sums = map(rows, inspection.model_analysis(body, specs, DEVICES).split('\n\n'))
    assert all(' parameters trained ' in ' '.join(table[0]) for table in (layer, partition))
    assert ' '.join(sums[0]).startswith(words)
    assert layer[2][3:5] == [str(trained + 4 * 6 + 6), str(trained)]
    assert words in str(planning.plan(body, input_specs=specs))
    body.model = lingpipe.KerasModelParams(small_model)
    assert ' trained' not in str(planning.plan(body, input_specs=specs))
