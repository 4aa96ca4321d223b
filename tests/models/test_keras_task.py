import keras
import numpy as np
import pytest
import tensorflow as tf

from lingpipe.layers.keras_params import KerasParams
from lingpipe.models import keras_task

LOSSES = keras.losses
WIDTH = 3


def make_task(loss, layers=None, **body):
    params = keras_task.KerasTask.Params().Set(name='task', loss=loss)
    layers = layers or [KerasParams(keras.layers.Dense, units=4, activation='tanh'),
                        KerasParams(keras.layers.Dense, units=WIDTH)]
    params.body.Set(layers=layers, **body)
    keras.utils.set_random_seed(0)
    task = params.Instantiate()
    task.body.build((None, WIDTH))
    return task


def plain_loss_and_gradients(task, loss, x, y, weights):
    """Return what Keras computes of all layers on one device; `loss` divides by the sum of weights."""
    with tf.GradientTape() as tape:
        outputs = x
        for layer in task.body.stack:
            outputs = layer(outputs)
        value = loss(y, outputs, sample_weight=weights)
    return value, tape.gradient(value, task.body.trainable_variables)


def batch(num_rows=7):
    random = np.random.default_rng(0)
    return (random.normal(size=(num_rows, WIDTH)).astype('float32'),
            random.uniform(size=(num_rows, WIDTH)).astype('float32'),
            random.uniform(0.5, 2.0, num_rows).astype('float32'))


class SquaresOfMine(LOSSES.Loss):
    """A loss that is not Keras's own."""

    def call(self, y_true, y_pred):
        return keras.ops.mean(keras.ops.square(y_true - y_pred), -1)


@pytest.mark.parametrize('num_partitions, num_micro_batches', [(1, 1), (2, 3)])
@pytest.mark.parametrize('loss, settings', [
    (LOSSES.MeanSquaredError, {}), (LOSSES.Huber, {'delta': 0.3}), (LOSSES.MeanAbsoluteError, {'reduction': 'mean'}),
    (LOSSES.CategoricalCrossentropy, {'from_logits': True, 'label_smoothing': 0.1}), (SquaresOfMine, {})],
    ids=lambda value: getattr(value, '__name__', None))
def test_a_step_equals_keras_on_one_device(loss, settings, num_partitions, num_micro_batches, assert_close):
    task = make_task(KerasParams(loss, **settings), num_partitions=num_partitions,
                     num_micro_batches=num_micro_batches)
    x, y, weights = batch()
    out = task.body.value_and_grad(task.loss_and_metrics, x, (y, weights))
    reference = loss(**{**settings, 'reduction': 'mean_with_sample_weight'})
    assert_close((out.loss, out.gradients), plain_loss_and_gradients(task, reference, x, y, weights))


def test_a_weight_of_a_sequence_counts_for_all_of_its_tokens(assert_close):
    layers = [KerasParams(keras.layers.RepeatVector, n=5), KerasParams(keras.layers.Dense, units=4)]
    task = make_task(KerasParams(LOSSES.SparseCategoricalCrossentropy, from_logits=True, ignore_class=3), layers,
                     num_micro_batches=3)
    x, _, weights = batch()
    labels = np.random.default_rng(1).integers(0, 4, (7, 5)).astype('int32')
    out = task.body.value_and_grad(task.loss_and_metrics, x, (labels, weights))
    each = LOSSES.SparseCategoricalCrossentropy(True, reduction=None)(labels, task.body(x)).numpy()
    assert_close(out.loss, np.average(each, weights=weights[:, None] * (labels != 3)))


# ---- what is refused ------------------------------------------------------------------------------------------------

class Spread(LOSSES.Loss):
    """Compares each example with the mean of the batch."""

    def call(self, y_true, y_pred):
        return keras.ops.mean(keras.ops.square(y_pred - keras.ops.mean(y_pred, 0)), -1)


class OneNumber(LOSSES.Loss):
    def call(self, y_true, y_pred):
        return keras.ops.mean(keras.ops.square(y_true - y_pred))


@pytest.mark.parametrize('loss, message', [
    (KerasParams(Spread), "The graph of the loss 'spread' does not show .* cannot be computed over micro-batches. Return"),
    (KerasParams(OneNumber), 'returns the mean over the examples, to which sample_weight cannot be applied.*Return'),
    (KerasParams(LOSSES.Dice), "'dice' does not show")], ids=['mixes', 'one number', 'dice'])
def test_a_loss_that_does_not_add_up_is_refused_by_name(loss, message):
    task = make_task(loss)
    targets = tf.TensorSpec([7, WIDTH]), tf.TensorSpec([7])
    with pytest.raises(ValueError, match=message):
        task.metric_names(targets)


@pytest.mark.parametrize('loss, message', [
    (None, 'task.loss is None, but it must be the params of a Keras loss. Set it'),
    (KerasParams(keras.layers.Dense, units=1), 'task.loss is Dense, but'),
    (KerasParams(LOSSES.MeanSquaredError, reduction='sum'), "loss.reduction='sum' .* Leave reduction out"),
    (KerasParams(LOSSES.MeanSquaredError, reduction=None), 'loss.reduction=None .* Leave reduction out')])
def test_what_is_no_mean_loss_is_refused_at_once(loss, message):
    with pytest.raises(ValueError, match=message):
        make_task(loss)


class TwoOutputs(keras.layers.Layer):
    def call(self, inputs):
        return inputs, 2.0 * inputs


def test_a_body_of_several_outputs_is_told_what_to_write():
    task = make_task(KerasParams(LOSSES.MeanSquaredError), [KerasParams(TwoOutputs)])
    with pytest.raises(ValueError, match='KerasTask compares one tensor .* returns 2. Write its method metric_argum'):
        task.metric_names((tf.TensorSpec([4, WIDTH]), tf.TensorSpec([4])))
