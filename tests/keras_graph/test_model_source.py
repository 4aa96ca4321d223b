"""Bodies that are Keras models, given by Params: where their weights go, what they are called, what is refused."""

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


def test_a_saved_model_goes_to_the_devices_of_the_partitions(tmp_path):
    saved, path = skipping_model(units=7), str(tmp_path / 'model.keras')
    saved.save(path)
    pipe = built(lingpipe.KerasModelParams(keras.saving.load_model, filepath=path))
    assert devices_of(pipe) == {'CPU:1', 'CPU:2'}
    for variable, expected in zip(pipe.model.weights, saved.weights):
        np.testing.assert_array_equal(variable, expected)


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


def test_a_function_that_returns_no_model_is_refused():
    with pytest.raises(ValueError, match='returned a dict'):
        lingpipe.KerasModelParams(dict).Instantiate().make()
