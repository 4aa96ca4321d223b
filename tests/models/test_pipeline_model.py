"""`PipelineModel` against `keras.Model` on the same weights and batches."""

import os
import pathlib
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

import lingpipe
from lingpipe.layers.keras_params import KerasParams
from lingpipe.private_api import eager_context
from tests.closeness import assert_close
from tests.plain_stack import normal

layers = keras.layers


def data(num_rows=12, width=5, num_classes=3):
    random = np.random.default_rng(0)
    return random.normal(size=(num_rows, width)).astype('float32'), random.integers(0, num_classes, num_rows)


def classifier():
    inputs = keras.Input([5])
    first = layers.Dense(8, activation='gelu', kernel_regularizer='l2')(inputs)
    hidden = layers.Dense(8, activation='tanh')(first)
    hidden = layers.Dense(8, activation='tanh')(hidden)
    return keras.Model(inputs, layers.Dense(3)(layers.Add()([first, hidden])))


def two_heads():
    inputs = keras.Input([5])
    hidden = layers.Dense(8, activation='tanh')(inputs)
    near = layers.Dense(3, name='near')(hidden)
    far = layers.Dense(2, name='far')(layers.Dense(6, activation='gelu')(hidden))
    return keras.Model(inputs, {'near': near, 'far': far})


def two_heads_in_a_list():
    model = two_heads()
    return keras.Model(model.input, [model.output['near'], model.output['far']])


def cross_entropy():
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def pair(make_model, **fields):
    """A plain model, and a pipelined model with the same weights."""
    plain, source = make_model(), make_model()
    source.set_weights(plain.get_weights())
    fields = {'num_partitions': 3, 'num_micro_batches': 2, **fields}
    return plain, lingpipe.PipelineModel(lingpipe.GPipeLayer.from_keras(source, **fields))


def assert_same_training(plain, pipelined, x, y, compiled, **fit):
    """Fit both; `compiled` makes the arguments of `compile` again for each."""
    fit = {'batch_size': 4, 'epochs': 2, 'shuffle': False, 'verbose': 0, **fit}
    histories = []
    for model in (plain, pipelined):
        model.compile(**compiled())
        histories.append(model.fit(x, y, **fit).history)
    assert_close(histories[1], histories[0])
    assert_close(weights(pipelined), weights(plain))


def assert_same_evaluation(plain, pipelined, x, y, **options):
    evaluations = [
        model.evaluate(x, y, batch_size=4, verbose=0, return_dict=True, **options) for model in (plain, pipelined)]
    assert_close(evaluations[1], evaluations[0])


def assert_same_predictions(plain, pipelined, x):
    assert_close(pipelined.predict(x, batch_size=4, verbose=0), plain.predict(x, batch_size=4, verbose=0))


def weights(model):
    return [variable.numpy() for variable in model.trainable_variables]


def with_momentum():
    return {'optimizer': keras.optimizers.SGD(0.05, momentum=0.9), 'loss': cross_entropy(), 'metrics': ['accuracy']}


def test_a_short_last_batch_counts_by_its_examples():
    x, y = data(10)
    models = pair(classifier, schedule='1f1b', num_micro_batches=4)
    assert_same_training(*models, x, y, with_momentum, validation_data=data(7))
    assert_same_predictions(*models, x)


def test_targets_of_fewer_rows_than_inputs_are_refused_while_running():
    x, y = data(8)
    specs = tf.TensorSpec([None, 5]), tf.TensorSpec([None], tf.int64)
    batches = tf.data.Dataset.from_generator(lambda: iter([(x, y[:7])]), output_signature=specs)
    _, model = pair(classifier, num_micro_batches=8)
    model.compile('sgd', cross_entropy())
    with pytest.raises(tf.errors.InvalidArgumentError, match='other numbers of rows than the first'):
        model.fit(batches, verbose=0)


def test_weights_of_examples_and_classes_count_as_in_keras():
    x, y = data()
    sample_weight = np.random.default_rng(1).uniform(size=12).astype('float32')

    def compiled():
        return {**with_momentum(), 'weighted_metrics': ['accuracy']}

    models = pair(classifier)
    assert_same_training(*models, x, y, compiled, sample_weight=sample_weight)
    assert_same_training(*models, x, y, with_momentum, class_weight={0: 1.0, 1: 0.2, 2: 3.0}, epochs=1)


def test_every_output_has_its_loss_weight_and_metrics():
    x, y = data()
    targets = {'near': y, 'far': np.stack([x[:, 0], x[:, 1] ** 2], -1)}
    models = pair(two_heads, schedule='zb_h1', recompute='none')
    assert_same_training(*models, x, targets, lambda: {
        'optimizer': keras.optimizers.SGD(0.05), 'loss': {'near': cross_entropy(), 'far': 'mse'},
        'loss_weights': {'near': 0.3, 'far': 2.0}, 'metrics': {'near': ['accuracy'], 'far': ['mae']}})
    assert_same_evaluation(*models, x, targets)
    assert_same_predictions(*models, x)


def test_each_output_is_weighed_by_its_own_sample_weights():
    x, y = data(10)
    random = np.random.default_rng(1)
    sample_weight = {
        'near': random.uniform(size=10).astype('float32'), 'far': random.uniform(size=10).astype('float32')}
    mean = {'reduction': 'mean_with_sample_weight'}
    assert_same_training(*pair(two_heads), x, {'near': y, 'far': x[:, :2]}, lambda: {
        'optimizer': 'sgd', 'loss': {'near': keras.losses.SparseCategoricalCrossentropy(from_logits=True, **mean),
                                     'far': keras.losses.MeanSquaredError(**mean)}}, sample_weight=sample_weight)


def test_slots_live_beside_their_weights_after_a_single_trace():
    _, pipelined = pair(classifier)
    traces = []
    pipelined.train_step = lambda data: traces.append(data) or lingpipe.PipelineModel.train_step(pipelined, data)
    pipelined.compile('adam', cross_entropy(), metrics=['accuracy'])
    pipelined.fit(*data(4), batch_size=4, verbose=0)
    assert len(traces) == 1
    homes = [variable.value.device for variable in pipelined.trainable_variables]
    assert len(set(homes)) == 3
    slots = [variable.value.device for variable in pipelined.optimizer.variables if len(variable.shape)]
    assert slots == [home for home in homes for _ in range(2)]


def of_params():
    stack = [KerasParams(layers.Dense, units=8, activation='tanh'), KerasParams(layers.Dropout, rate=0.3),
             KerasParams(layers.Dense, units=3)]
    return lingpipe.GPipeLayer.Params().Set(
        name='pipe', layers=stack, num_partitions=2, num_micro_batches=2, schedule='1f1b', random_seed=3).Instantiate()


def of_keras():
    return lingpipe.GPipeLayer.from_keras(classifier(), num_partitions=2, num_micro_batches=2, schedule='zb_h1')


@pytest.mark.parametrize('make_pipe', [of_params, of_keras])
def test_a_saved_model_resumes_training_as_if_it_had_not_stopped(make_pipe, tmp_path):
    x, y = data()
    model = lingpipe.PipelineModel(make_pipe())
    model.compile(**with_momentum())
    saver = keras.callbacks.ModelCheckpoint(str(tmp_path / 'model.keras'))
    model.fit(x, y, batch_size=4, shuffle=False, verbose=0, callbacks=[saver])
    loaded = keras.saving.load_model(tmp_path / 'model.keras')
    np.testing.assert_array_equal(loaded.predict(x, verbose=0), model.predict(x, verbose=0))
    assert [v.value.device for v in loaded.optimizer.variables] == [v.value.device for v in model.optimizer.variables]
    histories = [one.fit(x, y, batch_size=4, epochs=2, shuffle=False, verbose=0).history for one in (model, loaded)]
    assert_close(histories[1], histories[0], 1e-6)
    assert_close(weights(loaded), weights(model), 1e-6)


def test_a_fresh_program_that_imports_lingpipe_loads_saved_models(tmp_path):
    x, _ = data()
    np.save(tmp_path / 'x.npy', x)
    for make_pipe in (of_params, of_keras):
        model = lingpipe.PipelineModel(make_pipe())
        np.save(tmp_path / f'{make_pipe.__name__}.npy', model.predict(x, verbose=0))
        model.save(tmp_path / f'{make_pipe.__name__}.keras')
    program = (
        'import lingpipe, keras, numpy as np\n'
        'lingpipe.use_virtual_devices(2)\n'
        'for name in ("of_params", "of_keras"):\n'
        '    model = keras.saving.load_model(f"{name}.keras")\n'
        '    assert type(model).__name__ == "PipelineModel" and len(model.pipe.partitions) == 2\n'
        '    outputs = model.predict(np.load("x.npy"), verbose=0)\n'
        '    np.testing.assert_allclose(outputs, np.load(f"{name}.npy"), rtol=1e-4, atol=1e-5)\n')
    root = str(pathlib.Path(lingpipe.__file__).parents[1])
    ran = subprocess.run([sys.executable, '-c', program], cwd=tmp_path, capture_output=True, text=True, check=False,
                         env={**os.environ, 'PYTHONPATH': root})
    assert ran.returncode == 0, ran.stderr[-2000:]


def test_constant_loss_scale_missing_loss_and_other_layer_are_refused():
    x, y = data()
    _, pipelined = pair(two_heads_in_a_list)
    with pytest.raises(ValueError, match='loss_scale_factor=2.0'):
        pipelined.compile(keras.optimizers.SGD(loss_scale_factor=2.0), 'mse')
    pipelined.compile('sgd')
    with pytest.raises(ValueError, match='has no loss, and no layer'):
        pipelined.fit(x, [y, y], verbose=0)
    with pytest.raises(TypeError, match='given a Dense'):
        lingpipe.PipelineModel(layers.Dense(3))


def test_a_pipeline_is_traced_where_tensorflow_runs_functions_eagerly():
    x, y = data(8)
    models = pair(classifier, num_partitions=2)
    tf.config.run_functions_eagerly(True)
    try:
        assert_same_predictions(*models, x)
        assert_same_training(*models, x, y, with_momentum, epochs=1)
        assert_same_evaluation(*models, x, y)
    finally:
        tf.config.run_functions_eagerly(False)


def test_a_call_without_training_leaves_it_to_the_layers():
    augment = layers.RandomTranslation(0.5, 0.5, fill_mode='constant')
    images = keras.Input([6, 6, 3])
    model = lingpipe.PipelineModel(lingpipe.GPipeLayer.from_keras(
        keras.Model(images, layers.Rescaling(2.0)(augment(images))), num_partitions=2))
    x = np.random.default_rng(0).uniform(size=(4, 6, 6, 3)).astype('float32')
    assert np.abs(model(x) - 2 * x).max() > 0.1
    np.testing.assert_allclose(model(x, training=False), 2 * x)
    np.testing.assert_allclose(model.predict(x, verbose=0), 2 * x)


_SETTINGS = {'factor': 1.0}


class Scaled(layers.Layer):
    """Reads a number that is none of its attributes."""

    def call(self, inputs):
        return inputs * _SETTINGS['factor']


def test_compiling_again_traces_again():
    x, y = data()
    models = pair(lambda: keras.Sequential([keras.Input((5,)), Scaled(), layers.Dense(3)]), num_partitions=2)
    losses = []
    for factor in (1.0, 2.0):
        _SETTINGS['factor'] = factor
        for model in models:
            model.compile('sgd', cross_entropy())
            losses.append(model.evaluate(x, y, verbose=0))
    assert losses[0] != losses[2]
    assert_close(losses[1::2], losses[::2])
    for jit_compile in (True, False):
        models[1].compile('sgd', cross_entropy(), jit_compile=jit_compile)
        assert {stage.jit_compile for stage in models[1].pipe.stages} == {jit_compile}


def test_only_the_graph_of_a_step_is_left_as_it_is():
    """Its functions are optimised by themselves, and the functions of the user's program as ever."""
    found = []

    def asks(labels, outputs):
        options = eager_context.context().function_call_options.config_proto_serialized
        found.append(tf.compat.v1.ConfigProto.FromString(options).graph_options.rewrite_options.disable_meta_optimizer)
        return tf.reduce_mean(outputs)

    tf.config.optimizer.set_experimental_options({'disable_meta_optimizer': False})  # as for users; here it is set
    x, y = data()
    _, model = pair(classifier)
    model.compile('sgd', cross_entropy(), metrics=[asks])
    for run in (model.train_on_batch, model.test_on_batch):
        found.clear()
        run(x, y)
        assert found and all(found)
    asks(y, x)
    assert not found[-1]


# ---- optimizers with a past, and none ------------------------------------------------------------------------------

REGRESSION = normal(8, 5), np.zeros([8, 1], 'float32')


def two_layers():
    keras.utils.set_random_seed(0)
    body = layers.Dense(4, kernel_constraint='non_neg', bias_initializer='ones', name='body')
    return keras.Sequential([keras.Input([5]), body, layers.Dense(1, kernel_initializer='ones', name='head')])


def fit(model, optimizer, epochs=2):
    model.compile(optimizer, 'mse')
    model.fit(*REGRESSION, batch_size=4, epochs=epochs, shuffle=False, verbose=0)


def assert_slots_are_beside_weights(optimizer, model):
    homes = {variable.path.replace('/', '_'): variable.value.device for variable in model.trainable_variables}
    assert len(set(homes.values())) == 2
    for slot in optimizer.variables:
        assert not slot.shape.rank or slot.value.device == homes[slot.name.rpartition('_')[0]]


def test_an_optimizer_and_its_model_resume_where_they_were():
    plain, source = two_layers(), two_layers()
    for model in (plain, source):
        fit(model, keras.optimizers.Adam(0.05))
    model = lingpipe.PipelineModel(lingpipe.GPipeLayer.from_keras(source, num_partitions=2, num_micro_batches=2))
    assert_slots_are_beside_weights(source.optimizer, source)
    fit(plain, plain.optimizer)
    fit(model, source.optimizer)
    assert_close(source.get_weights(), plain.get_weights())
    lingpipe.GPipeLayer.from_keras(source, num_partitions=2, devices=['CPU:2', 'CPU:5'])
    for model in (plain, source):
        model.fit(*REGRESSION, batch_size=4, shuffle=False, verbose=0)
    assert_close(source.get_weights(), plain.get_weights())
    assert_slots_are_beside_weights(source.optimizer, source)


def test_a_model_without_trainable_weights_is_warned_of():
    source = two_layers()
    source.trainable = False
    with pytest.warns(UserWarning, match='does not have any trainable weights'):
        fit(lingpipe.PipelineModel(lingpipe.GPipeLayer.from_keras(source, num_partitions=2, num_micro_batches=2)), 'sgd', epochs=1)


def test_batches_of_one_form_share_a_loss_and_its_traces():
    x, y = data()
    model = lingpipe.PipelineModel(lingpipe.GPipeLayer.from_keras(classifier(), num_partitions=2, num_micro_batches=2))
    model.compile('sgd', cross_entropy(), run_eagerly=True)
    model.train_on_batch(x, y)
    programs = sum(len(stage._programs) for stage in model.pipe.stages)
    model.train_on_batch(x[:8], y[:8])
    assert model.loss_and_targets(x, y)[0] is model.loss_and_targets(x[:8], y[:8])[0]
    model.train_on_batch(x, y)
    assert sum(len(stage._programs) for stage in model.pipe.stages) <= 2 * programs  # of two sizes
