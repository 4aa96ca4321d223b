"""What a pipeline must compute: the same layers on one device, one micro-batch after the other, in plain Keras."""

import keras
import numpy as np
import tensorflow as tf

from lingpipe.pipeline import gpipe_layer
from lingpipe.stages import micro_batches
from tests import recorded_norm
from tests.closeness import assert_close, assert_gradients_close


class Counts(keras.layers.Layer):
    """Counts its calls in a variable that Keras does not know."""

    def __init__(self):
        super().__init__()
        self.count = tf.Variable(0, trainable=False)

    def call(self, inputs):
        self.count.assign_add(1)
        return inputs

    def compute_output_spec(self, inputs):
        return keras.KerasTensor(inputs.shape, inputs.dtype)


class PlainStack:
    """The layers of a pipeline without the pipeline, with a copy of its weights."""

    def __init__(self, pipe, inputs):
        if not pipe.built:  # without a graph for a call that nobody looks at
            pipe.build_from_specs(micro_batches.specs_of_tensors(inputs))
        self.layers = [params.Instantiate() for params in pipe.params.layers]
        self(inputs)
        for layer, pipelined in zip(self.layers, pipe.stack):
            for variable, source in zip(layer.weights, pipelined.weights):
                variable.assign(source.numpy())
        self._norms = [recorded_norm.RecordedNorm(norm) for layer in self.layers for norm in layer._flatten_layers()
                       if isinstance(norm, keras.layers.BatchNormalization)]

    @property
    def trainable_variables(self):
        return [variable for layer in self.layers for variable in layer.trainable_variables]

    @property
    def weights(self):
        return [variable for layer in self.layers for variable in layer.weights]

    def __call__(self, inputs, training=False):
        for layer in self.layers:
            inputs = layer(inputs, training=training) if layer._call_has_training_arg else layer(inputs)
        return inputs

    def value_and_grad(self, loss_fn, x, y_true, num_micro_batches):
        """Return the loss, the gradients and the outputs; batch norm is updated once, from all micro-batches together."""
        before = [norm.values() for norm in self._norms]
        num_rows = len(tf.nest.flatten(x)[0])
        loss, gradients, outputs = 0.0, [0.0] * len(self.trainable_variables), []
        for rows in micro_batch_rows(num_rows, num_micro_batches):
            inputs, targets = _take(rows, (x, y_true))
            share = (rows.stop - rows.start) / num_rows
            with tf.GradientTape() as tape:
                outputs.append(self(inputs, training=True))
                value = tf.reduce_mean(loss_fn(targets, outputs[-1])) * share
            for norm in self._norms:
                norm.next_micro_batch()
            new = _gradient(tape, value, self.trainable_variables)
            loss += value
            gradients = [total + gradient for total, gradient in zip(gradients, new)]
        for norm, values in zip(self._norms, before):
            norm.move(values)
        with tf.GradientTape() as tape:
            regularization = tf.add_n([0.0, *[penalty for layer in self.layers for penalty in layer.losses]])
        new = _gradient(tape, regularization, self.trainable_variables)
        gradients = [total + gradient for total, gradient in zip(gradients, new)]
        return loss + regularization, gradients, tf.nest.map_structure(lambda *parts: tf.concat(parts, 0), *outputs)


def _take(rows, nest):
    return tf.nest.map_structure(lambda array: tf.constant(array[rows]), nest)


def _gradient(tape, value, variables):
    gradients = tape.gradient(value, [variable.value for variable in variables], unconnected_gradients='zero')
    return [tf.convert_to_tensor(gradient) for gradient in gradients]


def micro_batch_rows(num_rows, num_micro_batches):
    """Return the rows of each micro-batch as slices; fewer rows than micro-batches give one each."""
    count = min(num_micro_batches, num_rows)
    return [slice(num_rows * m // count, num_rows * (m + 1) // count) for m in range(count)]


def normal(*shape, seed=0):
    """Return random numbers of a shape, the same each time."""
    return np.random.default_rng(seed).normal(size=shape).astype('float32')


def mean_square(y_true, outputs):
    """Return the mean square of the differences of two nests of tensors."""
    return tf.add_n([tf.reduce_mean((output - target)**2) for target, output in zip(
        tf.nest.flatten(y_true), tf.nest.flatten(outputs))])


def make_pipe(layers, **fields):
    """Return a pipeline whose weights and random numbers are always the same."""
    keras.utils.set_random_seed(0)
    fields = {'name': 'pipe', 'random_seed': 7, **fields}
    return gpipe_layer.GPipeLayer.Params().Set(layers=layers, **fields).Instantiate()


def assert_trains_as_plain_layers(pipe, loss_fn, x, y_true, num_micro_batches, num_steps=2):
    """Train a pipeline and its plain layers, and assert after each step that loss, outputs, gradients and weights are
    equal."""
    plain = PlainStack(pipe, x)
    optimizers = [keras.optimizers.SGD(0.1, momentum=0.9) for _ in range(2)]
    for _ in range(num_steps):
        out = pipe.value_and_grad(loss_fn, x, y_true, return_outputs=True)
        loss, gradients, outputs = plain.value_and_grad(loss_fn, x, y_true, num_micro_batches)
        assert_close((out.loss, out.outputs), (loss, outputs))
        assert_gradients_close(out.gradients, gradients)
        assert_close(out.squared_norm, tf.linalg.global_norm(gradients)**2)
        optimizers[0].apply(out.gradients, pipe.trainable_variables)
        optimizers[1].apply(gradients, plain.trainable_variables)
        assert_close([w.numpy() for layer in pipe.stack for w in layer.weights], [w.numpy() for w in plain.weights])


def loss_and_gradients(model, loss_fn, x, y_true, **arguments):
    """Return what plain Keras computes of a whole batch: the loss, and the list of gradients of the trained weights."""
    with tf.GradientTape() as tape:
        loss = loss_fn(y_true, model(x, training=True), **arguments)
        loss += sum(map(tf.reduce_sum, model.losses))
    return loss, _gradient(tape, loss, model.trainable_variables)
