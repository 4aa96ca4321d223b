import inspect

import keras
import numpy as np
import pytest

import lingpipe
from lingpipe.layers import keras_params
from lingpipe.pipeline import arguments, gpipe_layer

X = np.random.default_rng(0).normal(size=(12, 6)).astype('float32')
Y = np.arange(12) % 3


def layers():
    keras.utils.set_random_seed(0)
    return [keras.layers.Dense(8, activation='relu', name='first'), keras.layers.BatchNormalization(name='norm'),
            keras.layers.Dense(8, activation='relu', name='second'), keras.layers.Dense(3, name='last')]


def fit(model):
    model.compile(keras.optimizers.SGD(0.1), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model.fit(X, Y, batch_size=12, epochs=3, shuffle=False, verbose=0).history['loss']


def test_layers_are_trained_as_plain_keras_trains_them():
    own = [layer for layer in layers() if layer.name != 'norm']
    pipe = lingpipe.GPipeLayer(layers=own, num_partitions=2, num_micro_batches=3)
    losses = fit(lingpipe.PipelineModel(pipe))
    plain = keras.Sequential([layer for layer in layers() if layer.name != 'norm'])
    np.testing.assert_allclose(losses, fit(plain), rtol=1e-5)
    for layer, expected in zip(own, plain.layers):
        np.testing.assert_allclose(layer.kernel, expected.kernel, rtol=1e-5, atol=1e-7)


def test_weights_that_layers_have_are_kept_and_moved():
    own = layers()
    expected = keras.Sequential([keras.Input([6]), *own])(X).numpy()
    pipe = lingpipe.GPipeLayer(layers=own, num_partitions=2)
    np.testing.assert_allclose(pipe(X, training=False), expected, rtol=1e-5, atol=1e-6)
    for part in pipe.stages:
        assert {variable.value.device for variable in part.trainable_variables} == {
            f'/job:localhost/replica:0/task:0/device:{part.device.removeprefix("/device:")}'}


def test_a_saved_model_is_read_again(tmp_path):
    model = lingpipe.PipelineModel(lingpipe.GPipeLayer(layers=layers(), num_partitions=2))
    expected = model.predict(X, verbose=0)
    model.save(tmp_path / 'model.keras')
    loaded = keras.saving.load_model(tmp_path / 'model.keras')
    assert loaded.pipe.params.num_partitions == 2
    np.testing.assert_allclose(loaded.predict(X, verbose=0), expected, rtol=1e-6)


@pytest.mark.parametrize(('num_partitions', 'batch_size', 'num_replicas', 'expected'), [
    (1, 64, 1, 1), (2, None, 1, 8), (2, 64, 1, 8), (2, 60, 1, 6), (2, 7, 1, 7), (2, 13, 1, 1), (4, 64, 2, 16),
    (4, 24, 2, 12), (3, 4, 1, 4)])
def test_auto_divides_the_batch(num_partitions, batch_size, num_replicas, expected):
    assert arguments.num_micro_batches(num_partitions, batch_size, num_replicas) == expected


def test_auto_is_the_default_of_the_constructor_alone():
    pipe = lingpipe.GPipeLayer(layers=layers(), num_partitions=2, batch_size=12)
    assert pipe.params.num_micro_batches == pipe.schedule.num_micro_batches == 6
    assert lingpipe.GPipeLayer.Params().num_micro_batches == 1


def test_the_signature_has_every_field_and_its_default():
    given = {name: argument for name, argument in inspect.signature(gpipe_layer.GPipeLayer).parameters.items()
             if argument.kind == argument.KEYWORD_ONLY}
    fields = dict(gpipe_layer.GPipeLayer.Params().IterParams())
    assert set(given) == set(fields) - {'cls', 'model'}
    assert all(argument.annotation is not argument.empty for argument in given.values())
    differing = {name for name, argument in given.items() if argument.default != fields[name]}
    assert differing == {'layers', 'num_micro_batches'}
    assert all(f'{name}:' in gpipe_layer.GPipeLayer.__doc__ for name in given)


class Scale(keras.layers.Layer):
    """Its config lacks an argument."""

    def __init__(self, factor):
        super().__init__(name='scale')


SHARED = keras.layers.Dense(3, name='mine')


@pytest.mark.parametrize('fields, error, message', [
    ({'params': lingpipe.GPipeLayer.Params().Set(name='pipe', layers=[keras_params.KerasParams(keras.layers.Flatten)]),
      'num_partitions': 2}, TypeError, r'num_partitions=2 was given beside Params.*params.Set\(num_partitions'),
    ({'layers': None}, TypeError, 'layers=.* is no list of Keras layers'),
    ({'layers': keras.Sequential()}, TypeError, 'layers=.* is no list of Keras layers'),
    ({'layers': [keras.layers.Dense(3), 'relu']}, TypeError, r"layers\[1\]='relu' is no Keras layer"),
    ({'layers': [SHARED, SHARED]}, ValueError, r"layers\[1\], 'mine', stands in the list twice"),
    ({'layers': [Scale(2)]}, ValueError, r"'scale' cannot be made again of its get_config\(\)"),
    ({'layers': layers(), 'dtype_policy': 'mixed_bfloat16'}, ValueError, "dtype_policy='mixed_bfloat16' was given with layers")])
def test_what_does_not_go_together_is_refused(fields, error, message):
    with pytest.raises(error, match=message):
        lingpipe.GPipeLayer(**fields).build([2, 3])


def test_a_notebook_shows_the_partitions():
    pipe = lingpipe.GPipeLayer(layers=layers(), num_partitions=2, name='a<b')
    assert '<pre>' in pipe._repr_html_()
    pipe.build(X.shape)
    shown = pipe._repr_html_()
    assert shown.count('<tr>') == 3 and '<td style="text-align: left">first .. norm</td>' in shown
    assert 'a&lt;b' in shown and 'a<b' not in shown
