import keras
import numpy as np
import pytest
import tensorflow as tf

from lingpipe.layers.keras_params import KerasParams
from lingpipe.stages import losses
from tests.plain_stack import make_pipe

WIDTH = 3


def batch(num_rows):
    random = np.random.default_rng(0)
    return [random.normal(size=(num_rows, WIDTH)).astype('float32') for _ in range(2)]


def squared_errors(y_true, outputs):
    return tf.square(outputs - y_true)


def as_lingvo_does(y_true, outputs):
    """Mean over the values that are greater than 0, as over the tokens of a text that are not padding."""
    weights = tf.cast(y_true > 0.0, tf.float32)
    total = tf.reduce_sum(weights)
    return {
        'loss': (tf.math.divide_no_nan(tf.reduce_sum(weights * squared_errors(y_true, outputs)), total), total),
        'largest': (tf.reduce_max(outputs), 2.0)}


@pytest.mark.parametrize('num_rows, num_micro_batches', [(10, 4), (2, 4)])
@pytest.mark.parametrize('loss_fn', [
    lambda y_true, outputs: tf.reduce_mean(squared_errors(y_true, outputs)),
    lambda y_true, outputs: tf.reduce_mean(squared_errors(y_true, outputs), -1),
    squared_errors,
    keras.losses.MeanSquaredError(),
    keras.losses.mean_squared_error], ids=['scalar', 'by_example', 'by_value', 'keras_object', 'keras_function'])
def test_the_loss_is_the_mean_over_the_mini_batch(loss_fn, num_rows, num_micro_batches, assert_close):
    """That holds for every form of the loss function."""
    x, y = batch(num_rows)
    pipe = make_pipe([KerasParams(keras.layers.Dense, units=WIDTH)], num_micro_batches=num_micro_batches)
    out = pipe.value_and_grad(loss_fn, x, y)
    kernel, bias = pipe.trainable_variables
    errors = x @ kernel.numpy() + bias.numpy() - y
    assert_close(out.loss, np.mean(errors**2))
    assert_close(out.gradients, [2 * x.T @ errors / y.size, 2 * errors.sum(0) / y.size])
    total, weight = pipe.evaluate(loss_fn, x, y)['loss']
    assert_close(total / weight, np.mean(errors**2))


@pytest.mark.parametrize('num_partitions, num_micro_batches', [(1, 1), (2, 3), (2, 8)])
def test_means_with_weights_are_means_over_the_mini_batch(num_partitions, num_micro_batches, assert_close):
    x, y = batch(8)
    y[3] = -1.0  # with eight micro-batches nothing counts in this one
    dense = KerasParams(keras.layers.Dense, units=WIDTH, use_bias=False)
    pipe = make_pipe([dense, dense], num_partitions=num_partitions, num_micro_batches=num_micro_batches)
    out = pipe.value_and_grad(as_lingvo_does, x, y, return_outputs=True)
    counted, errors = y > 0, out.outputs.numpy() - y
    rows = [slice(8 * m // num_micro_batches, 8 * (m + 1) // num_micro_batches) for m in range(num_micro_batches)]
    largest = [out.outputs.numpy()[part].max() for part in rows]
    assert_close(out.loss, np.mean(errors[counted]**2))
    assert_close(out.metrics, {'largest': np.mean(largest)})
    hidden, kernel = x @ pipe.stack[0].kernel.numpy(), pipe.stack[1].kernel.numpy()
    upstream = 2 * errors * counted / counted.sum()
    assert_close(out.gradients, [x.T @ upstream @ kernel.T, hidden.T @ upstream])
    sums = pipe.evaluate(as_lingvo_does, x, y)
    assert_close(sums['loss'], (np.sum(errors[counted]**2), counted.sum()))
    assert_close(sums['largest'], (2 * np.sum(largest), 2.0 * num_micro_batches))


def test_a_dictionary_without_a_loss_is_refused():
    metrics = losses.as_metrics(lambda y_true, outputs: {'los': (1.0, 1.0)})
    with pytest.raises(ValueError, match=r"returned \['los'\].*an entry 'loss'"):
        metrics(tf.ones([2]), tf.ones([2]))


def test_a_keras_loss_of_a_lambda_that_averages_itself_counts_by_rows():
    loss = keras.losses.MeanSquaredError()
    loss.call = lambda y_true, outputs: tf.reduce_mean(outputs - y_true)
    total, weight = losses.as_metrics(loss)(tf.zeros([4, 2]), tf.fill([4, 2], 3.0))['loss']
    assert (float(total), float(weight)) == (12.0, 4.0)


def test_a_loss_that_is_a_sum_is_refused():
    with pytest.raises(ValueError, match="MeanSquaredError has reduction='sum'.*Set reduction='sum_over_batch_size'"):
        losses.as_metrics(keras.losses.MeanSquaredError(reduction='sum'))


def test_keras_losses_of_vectors_are_refused_where_they_do_not_add_up():
    vectors = tf.ones([4]), tf.zeros([4])
    total, weight = losses.as_metrics(keras.losses.MeanSquaredError())(*vectors)['loss']
    assert (float(total), float(weight)) == (4.0, 4.0)
    with pytest.raises(ValueError, match="'cosine_similarity' does not show .*a last dimension of size 1"):
        losses.as_metrics(keras.losses.CosineSimilarity())(*vectors)
    with pytest.raises(ValueError, match="'mean_squared_error' returns the mean .* to which sample_weight cannot"):
        losses.as_metrics(keras.losses.MeanSquaredError())(*vectors, tf.ones([4]))
