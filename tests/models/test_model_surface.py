"""What a pipelined model shows and saves, against the plain model on the same weights."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

import lingpipe
from lingpipe.layers.keras_params import KerasParams
from tests.plain_stack import normal

layers = keras.layers
X = np.random.default_rng(0).normal(size=(6, 5)).astype('float32')
Y = np.random.default_rng(1).normal(size=(6, 3)).astype('float32')


def make_source():
    inputs = keras.Input([5], name='inp')
    hidden = layers.BatchNormalization(name='norm')(
        layers.Dense(6, 'tanh', kernel_regularizer='l2', name='first')(inputs))
    return keras.Model(inputs, layers.Dense(3, name='head')(hidden), name='source')


def pipelined(source, num_micro_batches=2):
    return lingpipe.PipelineModel(
        lingpipe.GPipeLayer.from_keras(source, num_partitions=2, num_micro_batches=num_micro_batches))


def of_params():
    stack = [KerasParams(layers.Dense, units=6, activation='tanh'), KerasParams(layers.Dense, units=3)]
    return lingpipe.PipelineModel(lingpipe.GPipeLayer.Params().Set(
        name='pipe', layers=stack, num_partitions=2, num_micro_batches=2).Instantiate())


SHOWN = {
    'layers': lambda model: model.layers,
    'get_layer': lambda model: [model.get_layer('norm'), model.get_layer(index=1)],
    'shapes': lambda model: [model.input_shape, model.output_shape, model.compute_output_shape((7, 5))],
    'symbols': lambda model: [model.input, model.output, *model.inputs, *model.outputs],
    'names': lambda model: [model.name, model.output_names, model.operations, model.input_spec],
    'weights': lambda model: [*model.weights, len(model.variables), *model.trainable_variables,
                              *model.non_trainable_variables],
    'count': lambda model: [model.count_params(), len(model.losses), [metric.name for metric in model.metrics]],
}


@pytest.fixture(scope='module', name='models')
def models_fixture():
    source = make_source()
    return source, pipelined(source)


@pytest.mark.parametrize('shown', SHOWN)
def test_what_belongs_to_a_model_is_that_of_the_source(models, shown):
    source, model = models
    assert str(SHOWN[shown](model)) == str(SHOWN[shown](source))


def test_its_summary_is_that_of_the_source_and_its_layers_freeze(models):
    source, model = models
    lines, expected = [], []
    source.summary(print_fn=expected.append)
    model.summary(print_fn=lines.append)
    assert lines == expected and 'norm (BatchNormalization)' in lines[0]
    model.trainable = False
    assert not model.trainable_variables and not model.get_layer('head').trainable
    model.trainable = True


def test_a_model_of_params_lists_its_layers_and_says_what_it_lacks():
    model = of_params()
    model(X)
    assert [type(layer).__name__ for layer in model.layers] == ['Dense', 'Dense']
    with pytest.raises(AttributeError, match='made of Params'):
        model.input_shape  # noqa: B018


@pytest.mark.parametrize('suffix', ['.weights.h5', '.keras', '.h5'])
def test_weights_go_both_ways_between_plain_and_pipelined(models, suffix, tmp_path):
    _, model = models
    plain, path = make_source(), str(tmp_path / f'file{suffix}')
    save = 'save_weights' if suffix == '.weights.h5' else 'save'
    getattr(model, save)(path)
    plain.load_weights(path)
    np.testing.assert_allclose(plain(X), model(X), rtol=1e-5, atol=1e-6)
    plain.set_weights([weight + 0.5 for weight in plain.get_weights()])
    getattr(plain, save)(path)
    model.load_weights(path)
    np.testing.assert_allclose(model(X), plain(X), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    'make', [make_source, lambda: keras.Sequential([keras.Input([5]), layers.Dense(4), layers.Dense(3)])])
def test_tensorflow_checkpoints_go_both_ways(make, tmp_path):
    models = make(), pipelined(make())
    for number, (one, other) in enumerate([models, models[::-1]]):
        path = tf.train.Checkpoint(model=one).write(str(tmp_path / str(number)))
        expected = one.get_weights()
        other.set_weights([weight + 1.0 for weight in expected])
        tf.train.Checkpoint(model=other).restore(path)
        for actual, weight in zip(other.get_weights(), expected):
            np.testing.assert_array_equal(actual, weight)


def test_weights_stay_whole_if_the_next_save_fails(tmp_path, monkeypatch):
    model, path = pipelined(make_source()), tmp_path / 'latest.weights.h5'
    model.save_weights(path)
    before = path.read_bytes()

    def fail(*args):
        raise ConnectionError('a worker was lost')

    monkeypatch.setattr(layers.Dense, 'save_own_variables', fail)
    with pytest.raises(ConnectionError):
        model.save_weights(path)
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


def test_training_resumes_from_weights_and_slots_of_the_source(tmp_path):
    path, models = str(tmp_path / 'model.weights.h5'), []
    for make in (make_source, lambda: pipelined(make_source(), 1)):
        model = make()
        model.compile(keras.optimizers.Adam(0.01), 'mse')
        model.optimizer.build(model.trainable_variables)
        models.append(model)
    models[0].fit(X, Y, batch_size=6, epochs=2, verbose=0)
    models[0].save_weights(path)
    models[1].load_weights(path)
    losses = [model.fit(X, Y, batch_size=6, verbose=0).history['loss'] for model in models]
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)
    assert int(models[1].optimizer.iterations) == 3


def test_quantized_kernels_with_lora_are_saved_as_keras_does(tmp_path):
    source, loaded = make_source(), []
    source.quantize('int8')
    for name in ('first', 'head'):
        source.get_layer(name).enable_lora(2)
        source.get_layer(name).lora_kernel_b.assign(np.full(source.get_layer(name).lora_kernel_b.shape, 0.1))
    for number, model in enumerate([source, pipelined(source)]):
        model.save(tmp_path / f'{number}.keras')
        loaded.append(keras.saving.load_model(tmp_path / f'{number}.keras'))
        model.save_weights(tmp_path / f'{number}.weights.h5')
        source.load_weights(tmp_path / f'{number}.weights.h5')
    np.testing.assert_allclose(loaded[1](X), loaded[0](X), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize('make', [lambda: pipelined(make_source()), of_params])
def test_it_exports_the_plain_model(make, tmp_path):
    model = make()
    expected = model(X).numpy()
    model.export(tmp_path / 'exported', verbose=False)
    loaded = tf.saved_model.load(tmp_path / 'exported')
    np.testing.assert_allclose(loaded.serve(X), expected, rtol=1e-5, atol=1e-6)


def test_a_new_head_takes_the_tensors_of_the_trained_body(models):
    _, model = models
    head = keras.Model(model.input, layers.Dense(2)(model.get_layer('norm').output))
    assert pipelined(head)(X).shape == (6, 2)


def test_sparse_tensors_enter_as_in_keras(models):
    source, model = models
    np.testing.assert_allclose(model(tf.sparse.from_dense(X)), source(X), rtol=1e-5, atol=1e-6)


def mixing(function, batch_size=None):
    inputs = keras.Input([5], batch_size)
    return keras.Model(inputs, layers.Dense(3)(function(layers.Dense(3)(inputs))))


def no_batch(function):
    inputs = keras.Input([5])
    hidden = layers.Dense(3)(inputs)
    return keras.Model(inputs, layers.Dense(3)(hidden) * function(hidden))


class Similarity(layers.Layer):
    """Compares each row with all rows of its batch."""

    def call(self, x):
        return keras.ops.matmul(x, keras.ops.transpose(x))


@pytest.mark.parametrize('make, message', [
    (lambda: no_batch(lambda x: keras.ops.mean(x, 0)), r'shape \(3,\) of all examples'),
    (lambda: keras.Model(inputs := keras.Input([5]), keras.ops.transpose(layers.Dense(3)(layers.Dense(3)(inputs)))),
     'first dimension is not the batch'),
    (lambda: mixing(layers.Softmax(0)), 'mixes the examples'),
    (lambda: mixing(lambda x: keras.ops.flip(x, 0), 6), 'mixes the examples'),
    (lambda: keras.Model(inputs := keras.Input([5]), Similarity()(layers.Dense(3)(layers.Dense(3)(inputs)))),
     r'returns a tensor of shape \(5, 5\) for a batch of 5 rows and \(7, 7\)')])
def test_tensors_without_batch_are_refused_with_micro_batches(make, message):
    with pytest.raises(ValueError, match=message):
        pipelined(make())
    source = make()
    np.testing.assert_allclose(pipelined(source, 1)(X), source(X), rtol=1e-5, atol=1e-6)


def test_constants_between_partitions_are_no_lost_batches():
    source = no_batch(lambda x: layers.Lambda(lambda tensor: keras.ops.ones([3]) * 2.0)(x))
    np.testing.assert_allclose(pipelined(source)(X), source(X), rtol=1e-5, atol=1e-6)


def test_rounding_in_16_bits_mixes_no_examples():
    inputs = keras.Input([3, 3])
    halves = keras.ops.cast(inputs, 'bfloat16')
    pipe = lingpipe.GPipeLayer.from_keras(
        keras.Model(inputs, keras.ops.einsum('btd,bsd->bts', halves, halves)), num_micro_batches=2)
    assert pipe(np.ones([4, 3, 3], 'float32')).shape == (4, 3, 3)


def test_a_pipeline_inside_a_model_is_refused_by_name(models):
    inputs = keras.Input([5])
    with pytest.raises(ValueError, match='inside another pipeline.*one pipeline of the whole model'):
        pipelined(keras.Model(inputs, layers.Dense(2)(models[1](inputs))))


class Scale(layers.Layer):
    def __init__(self):
        super().__init__()
        self._factors, self._notes = [2.0], {1: 'one', 'two': 2}  # keys without an order

    def call(self, inputs):
        return inputs * self._factors[0]


def test_a_call_takes_what_changed_in_layers_since(assert_close):
    lookup, scale = layers.StringLookup(vocabulary=['a', 'b']), Scale()
    words = keras.Input([2], dtype='string')
    source = keras.Model(words, scale(layers.Flatten()(layers.Embedding(3, 4)(lookup(words)))))
    model, x = pipelined(source), tf.constant([['a', 'b'], ['b', 'c']])
    assert_close(model(x), source(x))
    lookup.set_vocabulary(['b', 'c'])
    assert_close(model(x), source(x))
    scale._factors[0] = 3.0
    assert_close(model(x), source(x))


class Skip(keras.Model):
    def __init__(self):
        super().__init__(name='skip')
        self.first, self.last, self.skips = layers.Dense(4), layers.Dense(4), True

    def call(self, inputs):
        hidden = self.last(self.first(inputs))
        return hidden + inputs if self.skips else hidden


def test_a_source_that_calls_other_layers_since_is_refused(assert_close):
    x, inputs = normal(6, 4), keras.Input([4])
    skip, chain = Skip(), keras.Sequential([keras.Input([4]), layers.Dense(3)], name='chain')
    source = keras.Model(inputs, chain(skip(inputs)))
    model = pipelined(source)
    model.compile('sgd', 'mse')
    model.fit(x, normal(6, 3), verbose=0)
    assert_close(model.predict(x, verbose=0), source(x))
    skip.skips = False
    model.compile('sgd', 'mse')
    for run in (lambda: model(x), lambda: model.train_on_batch(x, normal(6, 3)), lambda: model.predict(x, verbose=0)):
        with pytest.raises(ValueError, match="Model 'skip' calls other layers"):
            run()
    skip.skips = True
    assert_close(model.predict(x, verbose=0), source(x))
    chain.add(layers.ReLU())
    with pytest.raises(ValueError, match="Model 'chain' calls other layers"):
        model(x)


def test_predictions_take_weights_that_the_source_got_since(assert_close):
    source = make_source()
    model = pipelined(source)
    model.predict(X, verbose=0)
    source.quantize('int8')
    assert_close(model.predict(X, verbose=0), source.predict(X, verbose=0))
    assert {device[-5:] for device in (variable.value.device for variable in source.get_layer('head').variables)} == {
        'CPU:1'}


def strategy():
    return tf.distribute.MirroredStrategy(['CPU:0', 'CPU:1'])


def in_scope(function):
    with strategy().scope():
        return function()


def of_list():
    return lingpipe.GPipeLayer(layers=[layers.Dense(3)])


@pytest.mark.parametrize('use', [
    lambda: in_scope(functools.partial(of_list(), X)),
    lambda: in_scope(functools.partial(pipelined(make_source()).compile, 'sgd', 'mse')),
    lambda: in_scope(functools.partial(pipelined(make_source()).predict, X))])
def test_strategies_of_tensorflow_are_refused_by_name(use):
    with pytest.raises(ValueError, match='in the scope of a .*trategy.*for replicas set num_replicas'):
        use()


@pytest.mark.parametrize('make', [
    make_source, lambda: keras.Sequential([keras.Input([5]), layers.Dense(4, 'tanh'), layers.Dense(3)])])
def test_it_trains_inside_a_functional_model_as_its_source_does(make, assert_close):
    def around(model):
        inputs = keras.Input([5])
        return keras.Model(inputs, layers.Dense(3)(model(inputs)))

    plain, pipelined_inside = around(make()), around(pipelined(make(), 1))
    pipelined_inside.set_weights(plain.get_weights())
    for model in (plain, pipelined_inside):
        model.compile(keras.optimizers.SGD(0.1), 'mse')
        model.fit(X, Y, batch_size=6, epochs=2, shuffle=False, verbose=0)
    assert_close(pipelined_inside.get_weights(), plain.get_weights())


class NormInTraining(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense, self.norm = layers.Dense(4), layers.BatchNormalization(momentum=0.5)

    def call(self, inputs, training=False):
        hidden = self.dense(inputs)
        return self.norm(hidden, training=True) if training else hidden


def test_a_layer_first_called_in_training_gets_its_weights(assert_close):
    def make():
        inputs = keras.Input([5])
        return keras.Model(inputs, layers.Dense(3)(NormInTraining()(inputs)))

    plain, source = make(), make()
    source.set_weights(plain.get_weights())
    model = pipelined(source, num_micro_batches=1)
    for each in (plain, model):
        each.compile(keras.optimizers.SGD(0.1), 'mse')
        each.fit(X, Y, batch_size=6, verbose=0)
    assert len(source.variables) == 8
    for own, wanted in zip(source.variables, plain.variables):
        assert_close(own, wanted)
