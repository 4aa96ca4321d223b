"""Orders that no named schedule has, against the plain layers."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import lingpipe
from lingpipe.planner import stage_calls
from tests import needs
from tests.pipeline.small_stacks import convolutional_layers, cross_entropy, dense, images_and_labels, vectors
from tests.plain_stack import PlainStack, make_pipe

MIXED = [['0F0', '0F1', '0F2', '0I0', '0B1', '0W0', '0I2', '0W2'],
         ['1F0', '1I0', '1F1', '1B1', '1W0', '1F2', '1I2', '1W2']]


@pytest.mark.parametrize('order, num_micro_batches', [(MIXED, 3)])
@pytest.mark.parametrize('recompute', ['none', 'stage'])
def test_training_equals_the_plain_layers(order, num_micro_batches, recompute, assert_close, assert_gradients_close):
    x, y = images_and_labels()
    pipe = make_pipe(convolutional_layers(), schedule=order, recompute=recompute, num_partitions=len(order),
                     num_micro_batches=num_micro_batches)
    PlainStack(pipe, x).check_training(
        pipe, cross_entropy, x, y, num_micro_batches, assert_close, assert_gradients_close)


def test_only_a_backward_pass_that_has_its_w_runs_in_two_calls():
    x, y = vectors(num_rows=6, width=4, target_width=4)
    pipe = make_pipe([dense(4), dense(4)], schedule=MIXED, recompute='none', num_partitions=2, num_micro_batches=3)
    pipe.build(x.shape)
    specs = [tf.TensorSpec(each.shape, each.dtype) for each in (x, y)]
    step = stage_calls.step_calls(
        pipe, *specs, lambda targets, outputs: {'loss': (tf.reduce_mean(tf.square(outputs - targets)), 2.0)})
    found = [(str(call.action), call.name) for call in step.calls if call.action.stage == 1 and call.name != 'forward']
    assert found == [('1B0', 'backward_inputs'), ('1B1', 'backward'), ('1W0', 'backward_weights'),
                     ('1B2', 'backward_inputs'), ('1W2', 'backward_weights')]


@needs.xla_on_cpus
def test_compiled_partitions_equal_the_plain_layers(assert_close, assert_gradients_close):
    x, y = images_and_labels()
    pipe = make_pipe(convolutional_layers(), schedule=MIXED, num_partitions=2, num_micro_batches=3, jit_compile=True)
    PlainStack(pipe, x).check_training(pipe, cross_entropy, x, y, 3, assert_close, assert_gradients_close)


@pytest.mark.parametrize('order, num_micro_batches', [(MIXED, 3)])
def test_a_weight_of_two_partitions_gets_the_gradients_of_both(order, num_micro_batches):
    x, y = vectors(num_rows=6, width=4, target_width=4)
    shared = keras.layers.Dense(4, activation='tanh')
    between = [keras.layers.Dense(4, activation='tanh') for _ in range(3)]
    model = keras.Sequential([keras.Input([4]), shared, *between])
    model = keras.Model(model.inputs[0], shared(model.outputs[0]))
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(x) - y))
    expected = tape.gradient(loss, [variable.value for variable in model.trainable_variables])
    pipe = lingpipe.GPipeLayer.from_keras(
        model, schedule=order, num_partitions=len(order), num_micro_batches=num_micro_batches)
    out = pipe.value_and_grad(keras.losses.MeanSquaredError(), x, y)
    np.testing.assert_allclose(out.loss, loss, rtol=1e-5)
    found = {variable.path: gradient for variable, gradient in zip(pipe.trainable_variables, out.gradients)}
    for variable, gradient in zip(model.trainable_variables, expected, strict=True):
        np.testing.assert_allclose(found[variable.path], gradient, atol=1e-6)


@pytest.mark.parametrize('num_rows', [1, 2])
def test_a_smaller_batch_leaves_out_both_halves(num_rows, assert_close, assert_gradients_close):
    x, y = images_and_labels(num_rows)
    pipe = make_pipe(convolutional_layers(), schedule=MIXED, num_partitions=2, num_micro_batches=3)
    loss, gradients, _ = PlainStack(pipe, x).value_and_grad(cross_entropy, x, y, 3)
    out = pipe.value_and_grad(cross_entropy, x, y)
    assert_close(out.loss, loss)
    assert_gradients_close(out.gradients, gradients)
