import keras
import numpy as np
import pytest
import tensorflow as tf

from lingpipe.layers.keras_params import KerasParams
from lingpipe.pipeline import gpipe_layer
from tests.pipeline.small_stacks import (
    convolutional_layers,
    cross_entropy,
    dense,
    images_and_labels,
    squared_error,
    vectors,
)
from tests.plain_stack import PlainStack, assert_trains_as_plain_layers, make_pipe

layers = keras.layers


@pytest.mark.parametrize('num_partitions, num_micro_batches, recompute', [
    (1, 4, 'none'), (3, 8, 'layer'), (4, 1, 'stage')])
def test_training_equals_the_plain_layers(num_partitions, num_micro_batches, recompute):
    pipe = make_pipe(convolutional_layers(), num_partitions=num_partitions, num_micro_batches=num_micro_batches,
                     recompute=recompute, partition_by='params')
    assert_trains_as_plain_layers(pipe, cross_entropy, *images_and_labels(), num_micro_batches)


def test_a_built_pipeline_shows_its_partitions():
    pipe = make_pipe([dense(2), dense(2)], num_partitions=2, num_micro_batches=3)
    assert 'partition ' not in repr(pipe)
    pipe.build([None, 4])
    first, header, _, *rows = repr(pipe).splitlines()
    assert first == f"<GPipeLayer name={pipe.name!r}, schedule='gpipe', num_replicas=1, num_micro_batches=3, recompute='stage'>"
    assert [column.strip() for column in header.split('  ') if column][:4] == ['partition', 'device', 'from .. to', 'layers']
    assert [row.split()[:2] for row in rows] == [['0', 'CPU:0'], ['1', 'CPU:1']]


@pytest.mark.parametrize('num_partitions, num_rows', [(1, 4), (3, 3)])
def test_evaluation_equals_the_plain_layers_and_changes_nothing(num_partitions, num_rows, assert_close):
    x, y = images_and_labels(num_rows)
    pipe = make_pipe(convolutional_layers(), num_partitions=num_partitions, num_micro_batches=2)
    pipe.build(x.shape)
    for norm in (pipe.stack[1], pipe.stack[4]):
        norm.moving_mean.assign_add(0.2 * tf.ones_like(norm.moving_mean))
        norm.moving_variance.assign_add(0.5 * tf.ones_like(norm.moving_variance))
    before = [weight.numpy() for weight in pipe.weights]
    plain = PlainStack(pipe, x)
    assert_close(pipe(x, training=False), plain(x))
    sums = pipe.evaluate(cross_entropy, x, y)
    assert_close(sums, {'loss': (tf.reduce_sum(cross_entropy(y, plain(x))), tf.constant(float(num_rows)))})
    assert_close([weight.numpy() for weight in pipe.weights], before, tolerance=0)


class Join(layers.Layer):
    """Concatenates a nest of tensors."""

    def call(self, inputs):
        return tf.concat(tf.nest.flatten(inputs), -1)


def test_a_layer_may_be_frozen_and_thawed_between_steps(assert_close, assert_gradients_close):
    x, y = images_and_labels()
    pipe = make_pipe(convolutional_layers(), num_partitions=2, num_micro_batches=2)
    plain = PlainStack(pipe, x)
    for frozen in (False, True, False):
        for stack in (pipe.stack, plain.layers):
            stack[0].trainable = stack[4].trainable = not frozen
        out = pipe.value_and_grad(cross_entropy, x, y)
        loss, gradients, _ = plain.value_and_grad(cross_entropy, x, y, 2)
        assert_close(out.loss, loss)
        assert_gradients_close(out.gradients, gradients)
        assert_close([w.numpy() for layer in pipe.stack for w in layer.weights], [w.numpy() for w in plain.weights])


def test_state_updates_may_be_left_to_the_caller(assert_close):
    x, y = images_and_labels()
    pipe, other = [make_pipe(convolutional_layers(), num_partitions=2, num_micro_batches=2) for _ in range(2)]
    pipe.build(x.shape)

    @tf.function(autograph=False)
    def step(assigns):
        out = pipe.value_and_grad(cross_entropy, x, y, assign_state=False)
        for variable, value in out.state_updates if assigns else []:
            variable.assign(value)

    before = [weight.numpy() for weight in pipe.weights]
    step(False)
    assert_close([weight.numpy() for weight in pipe.weights], before, tolerance=0)
    step(True)
    other.value_and_grad(cross_entropy, x, y)
    assert_close([weight.numpy() for weight in pipe.weights], [weight.numpy() for weight in other.weights])


def test_a_python_step_number_does_not_trace_again():
    x, y = vectors()
    pipe, traces, counts = make_pipe([dense(3)]), [], []

    def loss(y_true, outputs):
        traces.append(outputs)
        return squared_error(y_true, outputs)

    for step in range(3):
        pipe.value_and_grad(loss, x, y, step=step)
        counts.append(len(traces))
    assert counts == counts[:1] * 3


class Noise(layers.Layer):
    """Multiplies by numbers that TensorFlow draws anew whenever the operation runs."""

    def call(self, inputs):
        return inputs * tf.random.uniform(tf.shape(inputs)), inputs * tf.random.uniform([5])


@pytest.mark.parametrize('recompute', ['none', 'selective', 'stage', 'layer'])
def test_backward_sees_the_random_numbers_of_forward(recompute, assert_close):
    x, _ = vectors()
    pipe = make_pipe([KerasParams(layers.Activation, activation='linear'), KerasParams(Noise), KerasParams(Join)],
                     num_partitions=2, num_micro_batches=4, recompute=recompute)
    x = tf.constant(x)
    with tf.GradientTape() as tape:
        tape.watch(x)
        outputs = pipe(x, training=True)
    assert_close(tape.gradient(outputs, x), (outputs[:, :5] + outputs[:, 5:]) / x, tolerance=1e-4)


def test_selective_recomputation_reads_constants_that_tensorflow_captures(assert_close):
    half = {'dtype': 'mixed_float16'}  # TensorFlow captures an eager tensor of float16, such as an adapted mean
    inputs = keras.Input([3], dtype='int32')
    hidden = layers.Normalization(mean=0.5, variance=2.0, **half)(keras.ops.one_hot(inputs, 6))
    hidden = layers.BatchNormalization(**half)(hidden, training=False)
    model = keras.Model(inputs, layers.Dense(2, activation='gelu', **half)(hidden))
    pipe = gpipe_layer.GPipeLayer.from_keras(
        model, num_partitions=1, num_virtual_stages=2, num_micro_batches=1, schedule='interleaved_1f1b',
        recompute='selective')
    x, y = np.arange(15, dtype='int32').reshape(5, 3) % 6, np.ones([5, 3, 2], 'float32')
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(tf.cast(model(x, training=True), tf.float32) - y))
    expected = tape.gradient(loss, [variable.value for variable in model.trainable_variables])
    out = pipe.value_and_grad(keras.losses.MeanSquaredError(), x, y)
    assert_close(out.gradients, expected, tolerance=1e-2)


class Talkative(layers.Layer):
    """Prints its name."""

    def __init__(self, log, **kwargs):
        super().__init__(**kwargs)
        self.log = log

    def call(self, inputs):
        tf.print(self.name, output_stream=f'file://{self.log}')
        return inputs + 1.0


@pytest.mark.parametrize('recompute', ['none', 'selective', 'stage', 'layer'])
def test_prints_in_a_stage_are_not_repeated_by_recomputation(recompute, tmp_path):
    x, y = vectors()
    stack = [dense(3), *[KerasParams(Talkative, log=str(tmp_path / 'log'), name=name) for name in ('first', 'second')]]
    pipe = make_pipe(stack, num_partitions=3, num_micro_batches=4, recompute=recompute)
    pipe.value_and_grad(squared_error, x, y)
    assert sorted((tmp_path / 'log').read_text().split()) == ['first'] * 4 + ['second'] * 4


class Penalty(layers.Layer):
    """Adds a loss of its own."""

    def call(self, inputs):
        self.add_loss(tf.reduce_sum(inputs))
        return inputs + 1.0


def test_losses_of_layers_need_a_loss_whose_weight_is_known_beforehand():
    x, y = vectors()
    with pytest.raises(ValueError, match="adds a loss.*behind layer 'dense_1', depends on outputs.*Train a "
                                         "PipelineModel"):
        make_pipe([KerasParams(Penalty), dense(3)]).value_and_grad(
            lambda y, outputs: {'loss': (tf.reduce_sum(outputs), tf.reduce_sum(outputs))}, x, y)


def test_a_mini_batch_in_which_nothing_counts_gives_no_gradient(assert_close, assert_gradients_close):
    x, y = vectors()
    pipe = make_pipe([dense(4), dense(3)], num_partitions=2, num_micro_batches=2)
    out = pipe.value_and_grad(lambda y, outputs: {'loss': (tf.reduce_sum(outputs) * 0.0, 0.0)}, x, y)
    assert_close(out.loss, 0.0)
    assert_gradients_close(out.gradients, [np.zeros(weight.shape) for weight in pipe.trainable_variables])
