import numpy as np
import pytest
import tensorflow as tf

from lingpipe.input import image_pixels


def inverse(x, offset):
    return tf.debugging.check_numerics(1 / x, 'infinite') + offset, tf.fill([2], x)


@tf.function
def inverses(x, offset):
    return image_pixels.map_rows(inverse, (x, offset), fallback=(tf.constant(-1.0), tf.constant([7.0, 8.0])))


@pytest.mark.parametrize('x', [[2.0], [0.0], [2.0, 4.0], [0.0, 2.0, 0.0, 4.0], [0.0, 0.0], [4.0, 0.0, 5.0]])
def test_the_fallback_stands_where_a_row_fails(x):
    found, copies = inverses(tf.constant(x), 10 * tf.range(len(x), dtype=tf.float32))
    np.testing.assert_allclose(found, [1 / value + 10 * row if value else -1 for row, value in enumerate(x)])
    np.testing.assert_array_equal(copies, [[value] * 2 if value else [7, 8] for value in x])


def test_without_a_fallback_a_row_that_fails_is_an_error():
    found, _ = image_pixels.map_rows(inverse, (tf.constant([2.0, 4.0]), tf.zeros([2])))
    np.testing.assert_allclose(found, [0.5, 0.25])
    with pytest.raises(tf.errors.InvalidArgumentError, match='infinite'):
        image_pixels.map_rows(inverse, (tf.constant([2.0, 0.0]), tf.zeros([2])))
