"""Orders that no named schedule has, against the plain layers."""

import pathlib

import keras
import numpy as np
import pytest
import tensorflow as tf

import lingpipe
from lingpipe.devices import variable_placement
from lingpipe.planner import stage_calls
from tests.pipeline.small_stacks import convolutional_layers, cross_entropy, dense, images_and_labels, vectors
from tests.plain_stack import PlainStack, assert_trains_as_plain_layers, loss_and_gradients, make_pipe

MIXED = [['0F0', '0F1', '0F2', '0I0', '0B1', '0W0', '0I2', '0W2'],
         ['1F0', '1I0', '1F1', '1B1', '1W0', '1F2', '1I2', '1W2']]

UNEQUAL = [['0F0', '0F1', '2F0', '3F0', '3B0', '2B0', '2F1', '3F1', '3I1', '2I1', '0B0', '3W1', '2W1', '0B1'],
           ['1F0', '1F1', '1B0', '1I1', '1W1']]
V_SHAPED = [['0F0', '0F1', '3F0', '3I0', '3W0', '3F1', '3B1', '0B0', '0I1', '0W1'],
            ['1F0', '2F0', '1F1', '2F1', '2B0', '1I0', '2I1', '1B1', '1W0', '2W1']]
ORDERS = pytest.mark.parametrize('order, num_micro_batches', [(MIXED, 3), (UNEQUAL, 2), (V_SHAPED, 2)],
                                 ids=['mixed', 'unequal', 'v_shaped'])


@ORDERS
@pytest.mark.parametrize('recompute', ['none', 'stage'])
def test_training_equals_the_plain_layers(order, num_micro_batches, recompute):
    pipe = make_pipe(convolutional_layers(), schedule=order, recompute=recompute, num_partitions=len(order),
                     num_micro_batches=num_micro_batches)
    assert_trains_as_plain_layers(pipe, cross_entropy, *images_and_labels(), num_micro_batches)


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


@pytest.mark.parametrize('file, recompute', [('zbv_comms', 'stage'), ('dualpipev', 'none')])
def test_files_of_pytorch_train_as_the_plain_layers_do(file, recompute):
    path = pathlib.Path(__file__).parents[1] / f'schedules/torch/{file}.csv'
    pipe = make_pipe(convolutional_layers(), schedule=str(path), recompute=recompute, num_partitions=2, num_micro_batches=4)
    assert_trains_as_plain_layers(pipe, cross_entropy, *images_and_labels(), 4)


def test_every_partition_is_where_the_order_says():
    for order, devices in [(UNEQUAL, '0100'), (V_SHAPED, '0110')]:
        pipe = make_pipe(convolutional_layers(), schedule=order, num_partitions=2, num_micro_batches=2)
        pipe.build((8, 6, 6, 3))
        assert [part.device[-5:] for part in pipe.partitions] == [f'CPU:{device}' for device in devices]
        placed = [{variable_placement.device_of(weight)[-5:] for weight in stage.variables().weights}
                  for stage in pipe.stages]
        assert all(found <= {part.device[-5:]} for found, part in zip(placed, pipe.partitions))


@ORDERS
def test_with_the_loss_outside_it_equals_the_plain_layers(order, num_micro_batches, assert_close, assert_gradients_close):
    x, y = images_and_labels()
    pipe = make_pipe(convolutional_layers(), schedule=order, num_partitions=2, num_micro_batches=num_micro_batches)
    plain = PlainStack(pipe, x)
    assert_close(pipe(x), plain(x))
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(cross_entropy(y, pipe(x, training=True))) + tf.add_n(pipe.losses)
    expected_loss, expected, _ = plain.value_and_grad(cross_entropy, x, y, num_micro_batches)
    gradients = tape.gradient(loss, [variable.value for variable in pipe.trainable_variables])
    assert_close(loss, expected_loss)
    assert_gradients_close(gradients, expected)


@ORDERS
def test_a_weight_of_two_partitions_gets_the_gradients_of_both(order, num_micro_batches):
    x, y = vectors(num_rows=6, width=4, target_width=4)
    shared = keras.layers.Dense(4, activation='tanh')
    between = [keras.layers.Dense(4, activation='tanh') for _ in range(3)]
    model = keras.Sequential([keras.Input([4]), shared, *between])
    model = keras.Model(model.inputs[0], shared(model.outputs[0]))
    loss, expected = loss_and_gradients(model, keras.losses.MeanSquaredError(), x, y)
    pipe = lingpipe.GPipeLayer.from_keras(
        model, schedule=order, num_partitions=len(order), num_micro_batches=num_micro_batches)
    out = pipe.value_and_grad(keras.losses.MeanSquaredError(), x, y)
    np.testing.assert_allclose(out.loss, loss, rtol=1e-5)
    found = {variable.path: gradient for variable, gradient in zip(pipe.trainable_variables, out.gradients)}
    for variable, gradient in zip(model.trainable_variables, expected, strict=True):
        np.testing.assert_allclose(found[variable.path], gradient, atol=1e-6)


@pytest.mark.parametrize('num_rows', [1, 2])
def test_a_smaller_batch_leaves_out_both_halves(num_rows):
    pipe = make_pipe(convolutional_layers(), schedule=MIXED, num_partitions=2, num_micro_batches=3)
    assert_trains_as_plain_layers(pipe, cross_entropy, *images_and_labels(num_rows), 3, num_steps=1)


class Counts(keras.layers.Layer):
    def build(self, shape):
        self.count = self.add_weight(shape=(), trainable=False)

    def call(self, x):
        self.count.assign(0.5 * self.count + keras.ops.mean(x))
        return x * self.count


def test_state_that_changes_in_another_order_is_refused():
    x, y = vectors(num_rows=4, width=4, target_width=1)
    model = keras.Sequential([keras.Input([4]), Counts(), keras.layers.Dense(1)])
    pipe = lingpipe.GPipeLayer.from_keras(
        model, schedule=[['F1', 'F0', 'B1', 'B0']] * 2, num_partitions=2, num_micro_batches=2)
    with pytest.raises(ValueError, match="Layers change .*variable.*schedule='own' has another order.*schedule='gpipe'"):
        pipe.value_and_grad(keras.losses.MeanSquaredError(), x, y)
