import keras
import numpy as np
import pytest
import tensorflow as tf

from lingpipe.pipeline import gpipe_layer
from tests.plain_stack import mean_square

layers = keras.layers


class Flip(layers.Layer):
    """Branches on the values of a tensor, after it added a loss."""

    def build(self, input_shape):
        self.scale = self.add_weight(shape=(), initializer='ones', name='scale')

    def call(self, inputs):
        self.add_loss(0.1 * keras.ops.mean(inputs * self.scale))
        if keras.ops.sum(inputs) > 0:
            return inputs * self.scale
        return -2.0 * inputs * self.scale

    def compute_output_spec(self, inputs):
        return keras.KerasTensor(inputs.shape, inputs.dtype)


class Repeated(layers.Layer):
    """Loops over a number of steps that is a tensor, and has a branching layer inside."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.dense, self.flip = layers.Dense(4, activation='tanh'), Flip()

    def build(self, input_shape):
        self.dense.build(input_shape)
        self.flip.build(input_shape)

    def call(self, inputs, training=False):
        steps = 1 + tf.cast(keras.ops.sum(inputs) > 0, tf.int32) * 2
        for _ in range(steps):
            inputs = self.dense(inputs)
        return self.flip(inputs)

    def compute_output_spec(self, inputs, training=False):
        return keras.KerasTensor(inputs.shape, inputs.dtype)


def branching_model():
    inputs = keras.Input([4])
    return keras.Model(inputs, layers.Dense(2, name='head')(Repeated(name='repeated')(inputs)))


def model_with_lambda():
    inputs = keras.Input([4])
    hidden = layers.Lambda(negative_where_small, output_shape=(4,), name='lambda')(layers.Dense(4)(inputs))
    return keras.Model(inputs, layers.Dense(2, name='head')(hidden))


def negative_where_small(inputs):
    if tf.is_symbolic_tensor(inputs) and inputs.graph.name.startswith('scratch'):
        return inputs  # Keras's own shape inference
    if keras.ops.max(inputs) < 0.5:
        return -inputs
    return inputs


def eager_value_and_grad(call, losses, variables, x, y):
    total, gradients = 0.0, [0.0] * len(variables)
    for rows in (slice(0, 2), slice(2, 4)):
        with tf.GradientTape() as tape:
            loss = (mean_square(y[rows], call(tf.constant(x[rows]))) + sum(losses())) / 2
        total += loss
        gradients = [a + b for a, b in zip(gradients, tape.gradient(loss, [variable.value for variable in variables]))]
    return total, gradients


@pytest.fixture(name='batch')
def batch_fixture():
    keras.utils.set_random_seed(0)
    x = np.random.default_rng(0).normal(size=(4, 4)).astype('float32')
    x[:2] += 2.0  # the first micro-batch takes one branch, the second the other
    x[2:] -= 2.0
    return x, np.ones([4, 2], 'float32')


def test_branches_and_loops_on_tensors_equal_eager_execution(batch, assert_close):
    (x, y), model = batch, branching_model()
    loss, gradients = eager_value_and_grad(
        lambda x: model(x, training=True), lambda: model.losses, model.trainable_variables, x, y)
    outputs = np.concatenate([model(x[:2]), model(x[2:])])
    pipe = gpipe_layer.GPipeLayer.from_keras(
        model, num_partitions=2, num_micro_batches=2, memory_limit=1e9, batch_size=4, added_losses='averaged')
    out = pipe.value_and_grad(mean_square, x, y)
    assert_close((out.loss, out.gradients), (loss, gradients))
    assert_close(pipe(x), outputs)
    assert all('call' not in vars(layer) for layer in model._flatten_layers())


def test_a_lambda_that_branches_on_the_batch_takes_one_micro_batch(batch, assert_close):
    (x, _), model = batch, model_with_lambda()
    outputs = model(x[:2])
    with pytest.raises(ValueError, match="'lambda' mixes the examples"):
        gpipe_layer.GPipeLayer.from_keras(model, num_partitions=2, num_micro_batches=2)
    assert_close(gpipe_layer.GPipeLayer.from_keras(model, num_partitions=2, num_micro_batches=1)(x[:2]), outputs)
    assert model.get_layer('lambda').function is negative_where_small


def test_an_error_of_a_layer_is_raised_unchanged():
    class Wrong(layers.Layer):
        def call(self, inputs):
            return inputs if inputs.shape[0] is None else inputs + len(3)

    inputs = keras.Input([4])
    with pytest.raises(TypeError, match="object of type 'int' has no len"):
        gpipe_layer.GPipeLayer.from_keras(keras.Model(inputs, Wrong()(inputs)))


def test_a_branch_on_the_number_of_rows_is_met_where_that_is_open(batch):
    class Halved(layers.Layer):
        def call(self, inputs):
            self.add_loss(keras.ops.mean(inputs))
            if keras.ops.shape(inputs)[0] > 3:
                return inputs / 2.0
            return inputs

        def compute_output_spec(self, inputs):
            return keras.KerasTensor(inputs.shape, inputs.dtype)

    model = keras.Sequential([keras.Input([4]), Halved(), layers.Dense(2)])
    wanted = model(batch[0])
    pipe = gpipe_layer.GPipeLayer.from_keras(model, num_partitions=2, num_micro_batches=1)
    call = tf.function(lambda x: pipe(x), input_signature=[tf.TensorSpec([None, 4])])
    np.testing.assert_allclose(call(batch[0]), wanted, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(call(batch[0][:2]), model(batch[0][:2]), rtol=1e-5, atol=1e-6)


def test_what_cannot_be_translated_is_refused_by_name(batch):
    class Early(layers.Layer):
        def call(self, inputs):
            if keras.ops.sum(inputs) > 0:
                if keras.ops.max(inputs) > 0:
                    return inputs
            inputs = inputs + 1.0
            return [inputs][int(keras.ops.min(inputs) > 0)]

        def compute_output_spec(self, inputs):
            return keras.KerasTensor(inputs.shape, inputs.dtype)

    inputs = keras.Input([4])
    with pytest.raises(ValueError, match="'early' branches or loops on a tensor.*keras.ops.cond"):
        gpipe_layer.GPipeLayer.from_keras(keras.Model(inputs, Early(name='early')(inputs)))
