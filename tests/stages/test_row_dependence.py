"""What the graph of a function shows of the rows of a batch, against functions whose answer is known."""

import keras
import pytest
import tensorflow as tf

from lingpipe.stages import row_dependence
from lingpipe.stages.row_rules import CONSTANT, MEAN, MIXED, ROWS, TOTAL

ops = keras.ops


def squares(y, x):
    return tf.square(x - y)


def rows_of(y):
    return tf.cast(tf.shape(y)[0], tf.float32)


CASES = {
    'row by row': (lambda y, x: tf.reduce_mean(squares(y, x), -1), ROWS),
    'softmax of a row': (lambda y, x: y * tf.nn.log_softmax(x), ROWS),
    'masked mean of a row': (lambda y, x: tf.reduce_sum(squares(y, x) * y, -1) / tf.reduce_sum(y, -1), ROWS),
    'part of a row': (lambda y, x: x[:, 1:] - y[..., :-1], ROWS),
    'weights of classes': (lambda y, x: tf.gather(tf.constant([1.0, 2.0]), tf.cast(y, tf.int32)) * x, ROWS),
    'flattened and back': (lambda y, x: tf.reshape(tf.reshape(x, [-1]) + tf.reshape(y, [-1]), [-1, 4]), ROWS),
    'transposed and back': (lambda y, x: tf.transpose(tf.transpose(x) + 1.0), ROWS),
    'product of each row': (lambda y, x: tf.einsum('bi,bi->b', x, y), ROWS),
    'columns one by one': (lambda y, x: tf.stack([column + 1.0 for column in tf.unstack(tf.transpose(x))], 1), ROWS),
    'column of a transposed batch': (lambda y, x: tf.transpose(x)[1, :] * y[:, 0], ROWS),
    'largest of a row': (lambda y, x: ops.argmax(x, -1), ROWS),
    'mean': (lambda y, x: tf.reduce_mean(squares(y, x)), MEAN),
    'mean by division': (lambda y, x: tf.reduce_sum(squares(y, x)) / rows_of(y), MEAN),
    'rows by division': (lambda y, x: tf.reduce_sum(squares(y, x) / rows_of(y)), MEAN),
    'means and a number': (lambda y, x: tf.reduce_mean(y - x) + 0.3 * tf.reduce_mean(x, 0)[1] + 1.0, MEAN),
    'concatenated values': (lambda y, x: tf.reduce_mean(tf.concat([x, y], -1)), MEAN),
    'sum': (lambda y, x: 0.1 * tf.reduce_sum(squares(y, x)), TOTAL),
    'mean times rows': (lambda y, x: tf.reduce_mean(squares(y, x)) * rows_of(y), TOTAL),
    'number': (lambda y, x: tf.constant(3.0), CONSTANT),
    'a share for each row': (lambda y, x: tf.reduce_sum(x * tf.fill([y.shape[0], 1], 1.0 / y.shape[0])), MIXED),
    'mean and sum': (lambda y, x: tf.reduce_mean(x) + tf.reduce_sum(x), MIXED),
    'root of a mean': (lambda y, x: tf.sqrt(tf.reduce_mean(squares(y, x))), MIXED),
    'masked mean': (lambda y, x: tf.reduce_sum(squares(y, x) * y) / tf.reduce_sum(y), MIXED),
    'selected rows': (lambda y, x: tf.reduce_mean(tf.boolean_mask(x, y > 0.0)), MIXED),
    'all pairs': (lambda y, x: tf.reduce_mean(tf.abs(x[:, None] - x[None])), MIXED),
    'similarities': (lambda y, x: tf.matmul(x, y, transpose_b=True), MIXED),
    'identity matrix': (lambda y, x: tf.reduce_mean(x[:, :1] * tf.eye(tf.shape(x)[0])), MIXED),
    'columns beside rows': (lambda y, x: tf.reduce_mean(x[:, 0] - y[:, :1]), MIXED),
    'rows that rows name': (lambda y, x: tf.gather(x, tf.cast(y[:, 0], tf.int32)), MIXED),
    'rows of a table': (lambda y, x: x + tf.ones([10, 4])[:tf.shape(x)[0]], MIXED),
    'flip': (lambda y, x: x[::-1] - y, MIXED),
    'flip behind an ellipsis': (lambda y, x: tf.reduce_sum(x, -1)[..., ::-1], MIXED),
    'flip of a transposed batch': (lambda y, x: tf.reduce_sum(tf.transpose(x)[:, ::-1], 0), MIXED),
    'products of rows': (lambda y, x: tf.linalg.trace(tf.matmul(x, y, transpose_a=True)), MIXED),
    'first row': (lambda y, x: x[0] - y, MIXED),
    'next row': (lambda y, x: tf.reduce_mean(x[1:] - y[:-1]), MIXED),
    'largest': (lambda y, x: tf.reduce_max(x), MIXED),
    'hardest examples': (lambda y, x: tf.reduce_mean(tf.math.top_k(tf.reshape(x, [-1]), 2)[0]), MIXED),
    'centred': (lambda y, x: x - tf.reduce_mean(x, 0), MIXED),
    'running sum': (lambda y, x: tf.cumsum(x), MIXED),
    'batches side by side': (lambda y, x: tf.reduce_mean(tf.concat([x, y], 0)), MIXED),
    'other blocks': (lambda y, x: tf.reduce_sum(tf.reshape(x, [2, -1]), 1), MIXED),
    'random numbers': (lambda y, x: tf.reduce_mean(x * tf.random.uniform(tf.shape(x))), MIXED),
    'an operation without a rule': (lambda y, x: tf.map_fn(tf.reduce_sum, x), MIXED)}


@pytest.mark.parametrize('name', CASES)
def test_the_graph_shows_how_a_result_depends_on_rows(name):
    function, expected = CASES[name]
    given = row_dependence.rows(tf.TensorSpec([None, 4], tf.float32))
    value, = row_dependence.of_function(function, given, given).values
    assert value.dependence == expected


@pytest.mark.parametrize('name', [
    'mean_squared_error', 'binary_crossentropy', 'categorical_crossentropy', 'kl_divergence', 'cosine_similarity', 'huber',
    'log_cosh', 'poisson', 'binary_focal_crossentropy'])
def test_keras_losses_compute_each_row(name):
    given = row_dependence.rows(tf.TensorSpec([None, 3, 4], tf.float32))
    value, = row_dependence.of_function(getattr(keras.losses, name), given, given).values
    assert value.is_rows


def test_a_keras_loss_takes_a_vector_for_one_example():
    given = row_dependence.rows(tf.TensorSpec([None], tf.float32))
    value, = row_dependence.of_function(keras.losses.mean_squared_error, given, given).values
    assert value.specs[0].shape == () and value.dependence == MEAN


def test_several_places_of_a_row_stay_together():
    given = row_dependence.rows(tf.TensorSpec([None, 6], tf.float32))
    value, = row_dependence.of_function(lambda x: ops.reshape(x, (-1, 3)), given).values
    assert value.dependence == ROWS and not value.is_rows
