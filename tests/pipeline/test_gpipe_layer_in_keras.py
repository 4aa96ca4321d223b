"""The pipeline as an ordinary Keras layer: under tapes, in Functional models, in fit."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import lingpipe
from lingpipe.layers.keras_params import KerasParams
from tests.pipeline.small_stacks import dense, vectors
from tests.plain_stack import PlainStack, make_pipe, micro_batch_rows

layers = keras.layers


def layers_with_norm():
    return [
        dense(6, use_bias=False), KerasParams(layers.BatchNormalization, momentum=0.9),
        KerasParams(layers.Activation, activation='tanh'),
        dense(3, kernel_regularizer=KerasParams(keras.regularizers.L2, l2=0.1))]


def mean_squared_error(y_true, outputs):
    return tf.reduce_mean(tf.square(outputs - y_true))


def differentiate(pipe, x, y):
    with tf.GradientTape() as tape:
        tape.watch(x)
        outputs = pipe(x, training=True)
        loss = mean_squared_error(y, outputs) + tf.add_n(pipe.losses)
    return loss, tape.gradient(loss, [*[variable.value for variable in pipe.trainable_variables], x])


def plain_input_gradients(plain, x, y, rows):
    gradients = []
    for part in rows:
        inputs = tf.constant(x[part])
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            loss = mean_squared_error(y[part], plain(inputs, training=True)) * len(inputs) / len(x)
        gradients.append(tape.gradient(loss, inputs))
    return tf.concat(gradients, 0)


@pytest.mark.parametrize('num_partitions, num_rows, recompute, in_function', [
    (1, 8, 'none', True), (4, 8, 'stage', False), (3, 10, 'none', False), (2, 3, 'stage', True)])
def test_gradients_under_a_tape_equal_the_plain_layers(num_partitions, num_rows, recompute, in_function, assert_close,
                                                       assert_gradients_close):
    x, y = vectors(num_rows)
    pipe = make_pipe(layers_with_norm(), num_partitions=num_partitions, num_micro_batches=4, recompute=recompute)
    plain = PlainStack(pipe, x)
    function = tf.function(differentiate, autograph=False) if in_function else differentiate
    loss, gradients = function(pipe, tf.constant(x), tf.constant(y))
    expected_loss, expected, _ = plain.value_and_grad(mean_squared_error, x, y, 4)
    assert_close([w.numpy() for w in pipe.stack[1].weights], [w.numpy() for w in plain.layers[1].weights])
    inputs = plain_input_gradients(plain, x, y, micro_batch_rows(num_rows, 4))
    assert_close(loss, expected_loss)
    assert_gradients_close(gradients, [*expected, inputs])


class Halves(layers.Layer):
    """Makes two halves, and the place of the largest value, of its inputs; or joins halves again."""

    def call(self, inputs):
        if isinstance(inputs, tuple):
            return tf.concat(inputs[:2], -1), inputs[2]
        return (*tf.split(inputs, 2, -1), tf.argmax(inputs, -1))


def test_nests_and_integers_at_the_outputs(assert_close):
    x, _ = vectors(width=6)
    pipe = make_pipe([dense(4), KerasParams(Halves), KerasParams(Halves)], num_partitions=3, num_micro_batches=4)
    x = tf.constant(x)
    with tf.GradientTape() as tape:
        tape.watch(x)
        values, places = pipe(x, training=True)
        loss = tf.reduce_sum(values**2)
    kernel = pipe.stack[0].kernel.numpy()
    assert_close(places, np.argmax(x @ kernel, -1))
    assert_close(tape.gradient(loss, x), 2 * (x @ kernel) @ kernel.T)


def functional_model(pipe, width=5):
    inputs = keras.Input((width,))
    first, last = [layers.Dense(units, kernel_initializer='ones') for units in (width, 2)]
    return keras.Model(inputs, last(pipe(first(inputs))))


def test_a_functional_model_knows_shapes_before_it_runs():
    model = functional_model(make_pipe(layers_with_norm(), num_partitions=2, num_micro_batches=4))
    assert model.output_shape == (None, 2)
    assert model.layers[2].output.shape == (None, 3)
    assert model.count_params() == 30 + (30 + 4 * 6 + 21) + 8


@pytest.mark.parametrize('is_wrapped', [False, True])
def test_masks_go_in_and_out_of_eager_calls(is_wrapped, assert_close):
    def body():
        tokens = keras.Input([6, 5])
        return keras.Model(tokens, layers.Dense(4)(layers.LSTM(4, return_sequences=True)(tokens)))

    plain, source = body(), body()
    source.set_weights(plain.get_weights())
    pipe = lingpipe.GPipeLayer.from_keras(source, num_partitions=2, num_micro_batches=2)
    models = plain, lingpipe.PipelineModel(pipe) if is_wrapped else pipe
    x = np.random.default_rng(0).normal(size=(4, 6, 5)) * (np.arange(6) < np.array([[3], [6], [1], [4]]))[..., None]
    masking, reader, found = layers.Masking(), layers.GRU(3), []
    for model in models:
        outputs = model(masking(x))
        with tf.GradientTape() as tape:
            total = tf.reduce_sum(reader(model(x, mask=masking(x)._keras_mask)))
        found.append([outputs, outputs._keras_mask, reader(outputs), *tape.gradient(total, model.trainable_variables)])
    assert_close(found[1], found[0])


def test_an_unrecorded_call_leaves_gradients_of_later_calls(assert_close):
    x, y = map(tf.constant, vectors(4))
    pipe = make_pipe([dense(6), dense(3)], num_partitions=2, num_micro_batches=2)
    found = []
    for function in (tf.recompute_grad(lambda inputs: pipe(inputs, training=True)),
                     lambda inputs: pipe(inputs, training=True)):
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = mean_squared_error(y, function(x))
        found.append(tape.gradient(loss, x))
    assert np.abs(found[0]).max() > 0
    assert_close(found[0], found[1])


def test_it_gives_shapes_to_a_wrapper():
    pipe = make_pipe([dense(6), dense(3)], num_partitions=2, num_micro_batches=2)
    pipe.build((None, 5))
    assert layers.TimeDistributed(pipe)(np.ones([4, 2, 5], 'float32')).shape == (4, 2, 3)
    with pytest.raises(ValueError, match='Give a Python boolean'):
        tf.function(lambda training: pipe(np.ones([4, 5], 'float32'), training=training))(tf.constant(True))


def test_fit_equals_fit_of_the_plain_layers(assert_close):
    """Without batch norm a step does not depend on the number of micro-batches."""
    x, _ = vectors(14)
    y = np.random.default_rng(3).normal(size=(14, 2)).astype('float32')
    stack = [dense(6, activation='tanh'), dense(4, kernel_regularizer='l2'), dense(3)]
    pipe = make_pipe(stack, num_partitions=3, num_micro_batches=2)
    model = functional_model(pipe)
    plain = functional_model(keras.Sequential(PlainStack(pipe, x).layers))
    histories = []
    for trained in (model, plain):
        trained.compile(keras.optimizers.SGD(0.05, momentum=0.9), 'mse', metrics=['mae'])
        histories.append(trained.fit(x, y, batch_size=4, epochs=2, shuffle=False, verbose=0).history)
    assert_close(histories[0], histories[1], tolerance=1e-4)
    assert_close([w.numpy() for w in model.weights], [w.numpy() for w in plain.weights])
    assert_close(model.predict(x, batch_size=4, verbose=0), plain.predict(x, verbose=0))
    assert_close(model.evaluate(x, y, verbose=0), plain.evaluate(x, y, verbose=0))


@pytest.mark.parametrize('recompute', ['none', 'layer'])
def test_batches_of_unknown_size_may_have_few_rows(recompute, assert_close, assert_gradients_close):
    """A batch may have fewer rows than there are micro-batches."""
    x, y = vectors(10)
    pipe = make_pipe(layers_with_norm(), num_partitions=2, num_micro_batches=4, recompute=recompute)
    plain = PlainStack(pipe, x)
    step = tf.function(
        lambda x, y: pipe.value_and_grad(mean_squared_error, x, y),
        input_signature=[tf.TensorSpec([None, 5]), tf.TensorSpec([None, 3])])
    for num_rows in (10, 2, 1):
        out = step(x[:num_rows], y[:num_rows])
        loss, gradients, _ = plain.value_and_grad(mean_squared_error, x[:num_rows], y[:num_rows], 4)
        assert_close(out.loss, loss)
        assert_gradients_close(out.gradients, gradients)
        assert_close([w.numpy() for w in pipe.stack[1].weights], [w.numpy() for w in plain.layers[1].weights])


def test_weights_and_gradients_keep_the_order_of_the_layers():
    names = []
    for num_partitions in (1, 2, 4):
        pipe = make_pipe(layers_with_norm(), num_partitions=num_partitions)
        pipe.build((None, 5))
        names.append([variable.name for variable in pipe.weights])
        assert [v.path for v in pipe.trainable_variables] == [
            v.path for layer in pipe.stack for v in layer.trainable_variables]
    assert names[0] == names[1] == names[2] == [
        'kernel', 'gamma', 'beta', 'moving_mean', 'moving_variance', 'kernel', 'bias']


@pytest.mark.parametrize('take', [
    lambda texts: texts[:, :1],
    lambda texts: layers.Lambda(tf.strings.lower, output_shape=(2,), dtype='string')(texts)], ids=['slice', 'lambda'])
def test_texts_are_inputs_of_any_layer(take, assert_close):
    texts = keras.Input([2], dtype='string')
    indices = layers.StringLookup(vocabulary=['a', 'b'])(take(texts))
    source = keras.Model(texts, layers.Dense(1)(layers.Flatten()(layers.Embedding(4, 3)(indices))))
    pipe = lingpipe.GPipeLayer.from_keras(source, num_partitions=2, num_micro_batches=2)
    x = tf.constant([['a', 'B'], ['b', 'A'], ['b', 'b']])
    assert_close(pipe(x), source(x))


def test_functions_that_reverse_texts_over_the_batch_are_refused():
    texts = keras.Input([2], dtype='string')
    reverse = layers.Lambda(lambda texts: tf.reverse(texts, [0]), output_shape=(2,), dtype='string')
    source = keras.Model(texts, layers.StringLookup(vocabulary=['a', 'b'])(reverse(texts)))
    with pytest.raises(ValueError, match="'lambda.*' mixes the examples of a batch"):
        lingpipe.GPipeLayer.from_keras(source, num_micro_batches=2)
