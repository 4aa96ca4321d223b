"""The pipeline as an ordinary Keras layer: under tapes, in Functional models, in fit."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import lingpipe
from lingpipe.layers.keras_params import KerasParams
from tests.pipeline.small_stacks import dense, vectors
from tests.plain_stack import PlainStack, make_pipe, mean_square, micro_batch_rows

layers = keras.layers


def layers_with_norm():
    return [
        dense(6, use_bias=False), KerasParams(layers.BatchNormalization, momentum=0.9),
        KerasParams(layers.Activation, activation='tanh'),
        dense(3, kernel_regularizer=KerasParams(keras.regularizers.L2, l2=0.1))]


def differentiate(pipe, x, y):
    with tf.GradientTape() as tape:
        tape.watch(x)
        outputs = pipe(x, training=True)
        loss = mean_square(y, outputs) + tf.add_n(pipe.losses)
    return loss, tape.gradient(loss, [*[variable.value for variable in pipe.trainable_variables], x])


def plain_input_gradients(plain, x, y, rows):
    gradients = []
    for part in rows:
        inputs = tf.constant(x[part])
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            loss = mean_square(y[part], plain(inputs, training=True)) * len(inputs) / len(x)
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
    expected_loss, expected, _ = plain.value_and_grad(mean_square, x, y, 4)
    assert_close([w.numpy() for w in pipe.stack[1].weights], [w.numpy() for w in plain.layers[1].weights])
    inputs = plain_input_gradients(plain, x, y, micro_batch_rows(num_rows, 4))
    assert_close(loss, expected_loss)
    assert_gradients_close(gradients, [*expected, inputs])


def functional_model(pipe, width=5):
    inputs = keras.Input((width,))
    first, last = [layers.Dense(units, kernel_initializer='ones') for units in (width, 2)]
    return keras.Model(inputs, last(pipe(first(inputs))))


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
            loss = mean_square(y, function(x))
        found.append(tape.gradient(loss, x))
    assert np.abs(found[0]).max() > 0
    assert_close(found[0], found[1])


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
