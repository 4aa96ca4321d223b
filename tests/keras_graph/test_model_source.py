"""Bodies that are Keras models, given by Params: where their weights go, what they are called, what is refused."""

import pathlib
import zipfile

import keras
import numpy as np
import pytest
import tensorflow as tf

import lingpipe
from lingpipe.devices import variable_placement
from lingpipe.keras_graph import model_source

SPEC = tf.TensorSpec([4, 6], tf.float32)


def skipping_model(units=5):
    inputs = keras.Input([6])
    hidden = keras.layers.Dense(units, activation='relu')(inputs)
    joined = keras.layers.Concatenate()([keras.layers.Dense(units)(hidden), inputs])
    return keras.Model(inputs, keras.layers.Dense(2, name='head')(joined))


@pytest.fixture(name='file')
def file_fixture(tmp_path):
    model = skipping_model(units=7)
    path = str(tmp_path / 'model.keras')
    model.save(path)
    return path, model


def body(model_params, **fields):
    p = lingpipe.GPipeLayer.Params().Set(name='body', model=model_params, num_partitions=2, num_micro_batches=2)
    return p.Set(devices=['CPU:1', 'CPU:2'], **fields)


def built(model_params, **fields):
    pipe = body(model_params, **fields).Instantiate()
    pipe.build_from_specs(SPEC)
    return pipe


def devices_of(pipe):
    return {variable_placement.device_of(variable)[-5:] for variable in pipe.model.weights}


def test_a_function_makes_the_model_with_its_arguments():
    pipe = built(lingpipe.KerasModelParams(skipping_model, units=3))
    x = np.random.default_rng(0).normal(size=(4, 6)).astype('float32')
    assert pipe.model.layers[1].units == 3
    assert devices_of(pipe) == {'CPU:1', 'CPU:2'}
    np.testing.assert_allclose(pipe(x), pipe.model(x), rtol=1e-5)


def test_a_pipeline_is_built_by_shapes_with_the_dtypes_of_the_model():
    pipe = body(lingpipe.KerasModelParams(counting_model)).Instantiate()
    pipe.build([(4, 6), (4, 3)])
    ones, numbers = np.ones((4, 6), 'float32'), np.arange(12).reshape(4, 3)
    np.testing.assert_allclose(pipe([ones, numbers]), pipe.model([ones, numbers]), rtol=1e-5)


def counting_model():
    inputs, numbers = keras.Input([6]), keras.Input([None], dtype='int32')
    words = keras.layers.GlobalAveragePooling1D()(keras.layers.Embedding(12, 2)(numbers))
    return keras.Model([inputs, numbers], keras.layers.Dense(2)(keras.layers.Concatenate()([inputs, words])))


def test_an_argument_of_the_function_is_a_field():
    p = body(lingpipe.KerasModelParams(skipping_model))
    p.FromText('model.function.units : 9')
    assert p.Instantiate().model.layers[1].units == 9


def test_a_file_is_read_to_the_devices_of_the_partitions(file):
    path, saved = file
    pipe = built(lingpipe.KerasModelParams(model_file=path))
    assert devices_of(pipe) == {'CPU:1', 'CPU:2'}
    for variable, expected in zip(pipe.model.weights, saved.weights):
        np.testing.assert_array_equal(variable, expected)


def test_a_file_gives_a_model_that_takes_no_memory(file):
    model = model_source.make_model(lingpipe.KerasModelParams(model_file=file[0]).Instantiate())
    assert not any(variable_placement.is_allocated(variable) for variable in model.weights)


def test_without_its_weights_a_file_gives_layers_alone(file):
    path, saved = file
    pipe = body(lingpipe.KerasModelParams(model_file=path)).Instantiate()
    pipe.build_from_specs(SPEC, load_weights=False)
    assert not np.array_equal(pipe.model.weights[0], saved.weights[0])
    pipe.source.load_weights()
    np.testing.assert_array_equal(pipe.model.weights[0], saved.weights[0])


def test_names_stay_when_a_model_is_made_again():
    source = lingpipe.KerasModelParams(skipping_model).Instantiate()
    first, second = (list(model_source.names_by_path(model_source.make_model(source))) for _ in range(2))
    assert first == second == ['dense/kernel', 'dense/bias', 'dense_1/kernel', 'dense_1/bias', 'head/kernel', 'head/bias']


def test_equal_names_are_numbered():
    def tower(name):
        inputs = keras.Input([6])
        return keras.Model(inputs, keras.layers.Dense(6, use_bias=False, name='same')(inputs), name=name)

    inputs = keras.Input([6])
    nested = keras.Model(inputs, tower('second')(tower('first')(inputs)))
    assert list(model_source.names_by_path(nested)) == ['same/kernel', 'same/kernel_1']


@pytest.mark.parametrize('make, words', [
    (lambda path: lingpipe.KerasModelParams(), 'Give one of them'),
    (lambda path: lingpipe.KerasModelParams(dict).Instantiate().make(), 'returned a dict'),
    (lambda path: lingpipe.KerasModelParams(model_file=path / 'modle.keras').Instantiate().make(), "did you mean model.keras"),
    (lambda path: lingpipe.KerasModelParams(model_file='model.h5').Instantiate().make(), "is not a '.keras' file"),
])
def test_what_is_no_model_is_refused(file, make, words):
    with pytest.raises(ValueError, match=words):
        make(pathlib.Path(file[0]).parent)


def test_a_damaged_file_is_refused(tmp_path):
    path = tmp_path / 'model.keras'
    path.write_bytes(b'no archive')
    with pytest.raises(ValueError, match='holds no Keras model that can be read here'):
        lingpipe.KerasModelParams(model_file=str(path)).Instantiate().make()


def without_weights(path, weights=None):
    """Write a '.keras' file again without its weights, or with other bytes for them."""
    with zipfile.ZipFile(path) as archive:
        files = {name: archive.read(name) for name in archive.namelist() if name != 'model.weights.h5'}
    with zipfile.ZipFile(path, 'w') as archive:
        for name, content in (files | ({'model.weights.h5': weights} if weights else {})).items():
            archive.writestr(name, content)


@pytest.mark.parametrize('weights', [None, b'nothing'])
def test_weights_that_cannot_be_read_are_refused(file, weights):
    source = lingpipe.KerasModelParams(model_file=str(file[0])).Instantiate()
    model = source.make()
    without_weights(file[0], weights)
    with pytest.raises(ValueError, match='holds no Keras model that can be read here'):
        source.load_weights(model)
