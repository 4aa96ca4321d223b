import keras
import numpy as np
import pytest

import lingpipe
from lingpipe import schedules
from lingpipe.layers import keras_params
from lingpipe.partition import accelerators, balancing
from lingpipe.pipeline import construction, gpipe_layer, layer_sources

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
    assert construction.num_micro_batches(num_partitions, batch_size, num_replicas) == expected


def test_auto_is_the_default_of_the_constructors_alone():
    made = [lingpipe.GPipeLayer(layers=layers(), batch_size=12, devices=['CPU:0', 'CPU:1']),
            lingpipe.GPipeLayer.from_keras(keras.Sequential([keras.Input([6]), *layers()]), batch_size=12,
                                           devices=['CPU:0', 'CPU:1'])]
    made[0].build(X.shape)
    for pipe in made:
        chosen = {field: pipe.params.Get(field) for field in construction.DEFAULTS}
        assert chosen == {'num_partitions': 2, 'num_micro_batches': 6, 'schedule': '1f1b', 'recompute': 'none'}
        assert "'auto' chose num_partitions=2, num_micro_batches=6, schedule='1f1b', recompute='none'." in repr(pipe)
    assert lingpipe.GPipeLayer.Params().num_micro_batches == 1


@pytest.mark.parametrize('fields, expected', [
    ({}, ''), ({'devices': ['CPU:0']}, "num_partitions=1 for 4 layers, batch_size=None and the devices ['CPU:0']"),
    ({'num_partitions': 2, 'batch_size': 13}, 'num_micro_batches=1 for 4 layers, batch_size=13')])
def test_what_cannot_overlap_is_said(fields, expected, caplog):
    lingpipe.GPipeLayer(layers=layers(), **fields)
    assert expected in caplog.text and ('Nothing overlaps' in caplog.text) == bool(expected)


def test_recomputation_follows_from_the_memory():
    def built(**fields):
        deep = [keras.layers.Dense(8, activation='gelu') for _ in range(12)]
        pipe = lingpipe.GPipeLayer(layers=deep, num_partitions=2, batch_size=4096, **fields)
        pipe.build([4096, 8])
        return pipe

    roomy = built(memory_limit=1e9)
    assert (roomy.params.recompute, built().params.recompute) == ('none', 'none')
    needed = max(part.memory for part in roomy.partitions)
    tight = built(memory_limit=0.6 * needed)
    assert tight.params.recompute == 'stage' and max(part.memory for part in tight.partitions) <= 0.6 * needed


@pytest.mark.parametrize('fields, memory, expected', [
    ({'batch_size': 64}, 1e9, ('none', 1e9)), ({'batch_size': 64}, 1e3, ('layer', None)),
    ({}, 1e9, ('stage', None)), ({'batch_size': 64}, None, ('stage', None))])
def test_recomputation_follows_from_the_memory_of_gpus(fields, memory, expected, monkeypatch):
    monkeypatch.setattr(accelerators, 'memory_of_gpus', lambda: memory)
    source = layer_sources.LayersOfModel(keras.Sequential([keras.Input([6]), *layers()]))
    p = gpipe_layer.GPipeLayer.Params().Set(num_partitions=2, num_micro_batches=4, recompute='auto', **fields)
    specs = source.input_specs
    schedule = schedules.make_schedule('1f1b', 2, 4)
    found = balancing.cut(p, schedule, source, source.analyses(specs), specs, ['GPU:0', 'GPU:1'])
    assert (found.recompute, found.memory_limit) == expected


def test_the_docstring_has_every_field_and_its_default():
    assert all(f'\n        {name}=' in gpipe_layer.GPipeLayer.__doc__ for name in dict(
        gpipe_layer.GPipeLayer.Params().IterParams()) if name not in ('cls', 'model'))
    assert "\n        num_micro_batches='auto': M: number" in gpipe_layer.GPipeLayer.__doc__


class Scale(keras.layers.Layer):
    """Its config lacks an argument."""

    def __init__(self, factor):
        super().__init__()
        self.factor = self.add_weight(shape=[], initializer=keras.initializers.Constant(factor))

    def call(self, x):
        return self.factor * x


def test_own_layers_need_no_config():
    own = [keras.layers.Dense(6, name='first'), Scale(2.0), Scale(3.0)]
    plain = keras.Sequential([keras.Input([6]), *own])
    expected = plain(X).numpy()
    np.testing.assert_allclose(lingpipe.GPipeLayer(layers=own, num_partitions=3)(X), expected, rtol=1e-5, atol=1e-6)


def test_a_layer_may_stand_in_the_list_twice():
    shared = keras.layers.Dense(6)
    pipe = lingpipe.GPipeLayer(layers=[shared, keras.layers.ReLU(), shared], num_partitions=2)
    np.testing.assert_allclose(pipe(X), shared(keras.ops.relu(shared(X))), rtol=1e-5, atol=1e-6)
    assert len(pipe.trainable_variables) == 2


def test_batches_may_have_other_sizes_than_the_first():
    pipe = lingpipe.GPipeLayer(layers=[keras.layers.Dense(4), keras.layers.GlobalMaxPooling1D()], num_partitions=2)
    for length in (5, 9):
        x = np.ones([6, length, 3], 'float32')
        np.testing.assert_allclose(pipe(x), keras.Sequential(pipe.stack)(x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize('fields, error, message', [
    ({'params': lingpipe.GPipeLayer.Params().Set(name='pipe', layers=[keras_params.KerasParams(keras.layers.Flatten)]),
      'num_partitions': 2}, TypeError, r'num_partitions=2 was given beside Params.*params.Set\(num_partitions'),
    ({'params': keras.Sequential()}, TypeError, r'params=.* is not a Params object. A Keras model goes into .*from_keras'),
    ({'layers': None}, TypeError, 'layers=.* is not a list of Keras layers'),
    ({'layers': [keras.layers.Dense(3), 'relu']}, TypeError, r"layers\[1\]='relu' is not a Keras layer"),
    ({'layers': [keras.layers.Softmax(0, name='rows')], 'num_micro_batches': 2}, ValueError, "'rows' mixes the examples"),
    ({'layers': layers(), 'dtype_policy': 'mixed_bfloat16'}, ValueError, "dtype_policy='mixed_bfloat16' was given with layers")])
def test_what_does_not_go_together_is_refused(fields, error, message):
    with pytest.raises(error, match=message):
        lingpipe.GPipeLayer(**fields).build([2, 3])
