"""Moved weights and replaced ones against eager Keras, and what TensorFlow would have to do for fewer patches."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

import lingpipe
from lingpipe import patches

layers = keras.layers
X = np.random.default_rng(0).normal(size=(8, 4)).astype('float32')
Y = X[:, :1]


def pipelined(model, num_partitions):
    made = lingpipe.PipelineModel(
        lingpipe.GPipeLayer.from_keras(model, num_partitions=num_partitions, num_micro_batches=2))
    made.compile(keras.optimizers.Adam(0.1), 'mse')
    return made


def fit(model, epochs=2):
    model.fit(X, Y, batch_size=8, epochs=epochs, shuffle=False, verbose=0)


def dense_model():
    keras.utils.set_random_seed(0)
    return keras.Sequential([keras.Input([4]), *[layers.Dense(4, 'tanh') for _ in range(3)], layers.Dense(1)])


def predicting(model):
    return lambda: model.predict(X, verbose=0)


TRACED = {
    'the source': predicting,
    'a function of the user': lambda model: tf.function(lambda: model(X)),
    'a function of an earlier pipeline': lambda model: tf.function(functools.partial(pipelined(model, 2), X)),
}


@pytest.mark.parametrize('traced', TRACED)
def test_what_was_traced_before_a_move_reads_the_moved_weights(traced, assert_close):
    model = dense_model()
    call = TRACED[traced](model)
    assert_close(np.asarray(call()), np.asarray(model(X)))
    fit(pipelined(model, 4))
    assert_close(np.asarray(call()), np.asarray(model(X)))


@pytest.mark.slow
def test_earlier_pipelines_train_the_moved_weights_as_keras_does(assert_close):
    model, plain = dense_model(), dense_model()
    plain.compile(keras.optimizers.Adam(0.1), 'mse')
    first = pipelined(model, 2)
    fit(first)
    second = pipelined(model, 4)
    second.predict(X, verbose=0)
    fit(first)
    fit(plain, epochs=4)
    assert_close(model.get_weights(), plain.get_weights(), 1e-4)
    assert_close(second.predict(X, verbose=0), plain.predict(X, verbose=0), 1e-4)


def test_a_concrete_function_of_before_a_move_fails():
    """TensorFlow does not trace it again, and with the old weights it would be silently wrong."""
    model = dense_model()
    concrete = tf.function(model).get_concrete_function(tf.TensorSpec([8, 4]))
    pipelined(model, 4)
    with pytest.raises(tf.errors.InvalidArgumentError):
        concrete(tf.constant(X))


class OfClass(layers.Layer):
    """Reads its weight, and state that its call assigns, in a `tf.function` of its own."""

    def build(self, input_shape):
        self.scale = self.add_weight(shape=(input_shape[-1],), initializer='ones', name='scale')
        self.offset = self.add_weight(shape=(), initializer='zeros', trainable=False, name='offset')

    @tf.function
    def scaled(self, inputs):
        if keras.ops.sum(inputs) > 1e9:  # AutoGraph's
            inputs = inputs * 2.0
        return inputs * self.scale + self.offset

    def call(self, inputs):
        self.offset.assign(self.offset + 0.01)
        return self.scaled(inputs)


class OfObject(OfClass):
    def build(self, input_shape):
        super().build(input_shape)
        self.scaled = tf.function(lambda inputs: inputs * self.scale + self.offset)


@pytest.mark.parametrize('layer', [pytest.param(OfClass, marks=pytest.mark.slow), OfObject])
def test_functions_of_layers_read_the_weights_of_every_pipeline(layer, assert_close):
    def make():
        keras.utils.set_random_seed(0)
        inputs, shared = keras.Input([4]), layer()
        return keras.Model(inputs, layers.Dense(1)(layer()(layers.Dense(4, 'tanh')(shared(shared(inputs))))))

    model, plain = make(), make()
    plain.set_weights(model.get_weights())
    for ends in ([2, 5], [2, 3, 4, 5]):  # the layer that assigns is in one partition
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((plain(X) - Y)**2)
        gradients = tape.gradient(loss, [variable.value for variable in plain.trainable_variables])
        pipe = lingpipe.GPipeLayer.from_keras(
            model, num_partitions=len(ends), partition_by=ends, num_micro_batches=1, recompute='layer')
        assert_close(pipe.value_and_grad(keras.losses.MeanSquaredError(), X, Y).gradients, gradients)
        assert_close(model.get_weights(), plain.get_weights())
        for variable, gradient in zip(plain.trainable_variables, gradients):
            variable.assign_sub(gradient)
        model.set_weights(plain.get_weights())
        assert_close(model(X), plain(X))


class Changing(OfClass):
    """Assigns in a `tf.function` of its own."""

    @tf.function
    def call(self, inputs):
        self.offset.assign_add(1.0)
        return inputs * self.offset


def test_functions_of_layers_that_assign_are_refused():
    inputs = keras.Input([4])
    model = keras.Model(inputs, Changing()(layers.Identity()(inputs)))
    pipe = lingpipe.GPipeLayer.from_keras(model, num_partitions=2, num_micro_batches=2)
    with pytest.raises(ValueError, match="assigns 'changing/offset' inside .* leave the function undecorated"):
        pipe(X, training=True)


def test_tensorflow_still_traces_again_after_an_init_scope():
    """Once it does not, `patches.creating_outside_functions` is unnecessary."""
    def created(scope):
        made = []

        @tf.function(autograph=False)
        def function():
            with scope():
                made.append(tf.Variable(1.0))
            return made[0].read_value()

        function()
        return len(made)

    assert created(patches.creating_outside_functions) == 1
    with pytest.raises(ValueError, match='singleton'):
        created(tf.init_scope)


class HalfwayNorm(layers.BatchNormalization):
    """Moves only its mean, by half."""

    def call(self, inputs, training=None):
        mean, variance = self._moments(inputs, None)
        self.moving_mean.assign((self.moving_mean + mean) / 2)
        return keras.ops.batch_normalization(inputs, mean, variance, -1, self.beta, self.gamma)


class ShiftingNorm(layers.BatchNormalization):
    """Leaves the averages to Keras."""

    def call(self, inputs, training=None):
        return super().call(inputs + 1.0, training=training)


@pytest.mark.parametrize('norm, num_micro_batches', [(HalfwayNorm, 1), (ShiftingNorm, 2)])
def test_a_batch_norm_with_its_own_call_moves_its_own_averages(norm, num_micro_batches):
    found = []
    for wrap in (lambda model: model, lambda model: lingpipe.PipelineModel(
            lingpipe.GPipeLayer.from_keras(model, num_partitions=2, num_micro_batches=num_micro_batches))):
        keras.utils.set_random_seed(0)
        source = keras.Sequential([keras.Input([4]), norm(), layers.Dense(1)])
        model = wrap(source)
        model.compile('sgd', 'mse')
        fit(model)
        found.append([weight.numpy() for weight in (source.layers[0].moving_mean, source.layers[0].moving_variance)])
    for plain, piped in zip(*found):
        np.testing.assert_allclose(piped, plain, rtol=1e-5)


class Unhappy(layers.Layer):
    def call(self, inputs):
        tf.debugging.assert_positive(inputs, message='not positive')
        return inputs


def test_a_step_that_a_layer_stops_tells_its_message_or_where_to_find_it():
    model = pipelined(keras.Sequential([layers.Input([4]), layers.Dense(3), Unhappy(), layers.Dense(1)]), 2)
    for run in (fit, lambda failing: failing.pipe(X), lambda failing: failing.predict(X, verbose=0)):
        with pytest.raises(tf.errors.OpError) as failure:
            run(model)
        texts = [str(failure.value), *getattr(failure.value, '__notes__', [])]
        assert any('not positive' in text or 'lines above that begin with W' in text for text in texts)
