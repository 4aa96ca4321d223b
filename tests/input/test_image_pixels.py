import numpy as np
import pytest
import tensorflow as tf

from lingpipe.input import image_pixels
from tests.input import photographs

GRAY = np.array([0.299, 0.587, 0.114])


@pytest.mark.parametrize(('mode', 'subsampling'), [('RGB', 0), ('RGB', 1), ('RGB', 2), ('L', 0)])
def test_decoding_a_part_gives_the_pixels_that_decoding_and_cutting_gives(mode, subsampling):
    encoded = photographs.encoded(photographs.photograph(61, 83), mode=mode, subsampling=subsampling)
    decode = tf.function(lambda box: image_pixels.decode_image(encoded, 3, lambda shape: box))
    whole = image_pixels.decode_image(encoded, 3).numpy()
    generator = np.random.default_rng(0)
    for _ in range(60):
        (row, row_end), (column, column_end) = (sorted(generator.choice(n + 1, 2, replace=False)) for n in (61, 83))
        box = tf.constant([row, column, row_end - row, column_end - column])
        np.testing.assert_array_equal(decode(box), whole[row:row_end, column:column_end])


@pytest.mark.parametrize('file_format', ['PNG', 'BMP'])
def test_parts_of_what_is_no_jpeg_are_exact(file_format):
    image = photographs.photograph()
    encoded = photographs.encoded(image, file_format)
    part = image_pixels.decode_image(encoded, 3, lambda shape: tf.constant([5, 7, 20, 31]))
    np.testing.assert_array_equal(part, image[5:25, 7:38])


@pytest.mark.parametrize('file_format', ['JPEG', 'PNG'])
def test_gray_and_colour_become_each_other(file_format):
    image = photographs.photograph()
    gray = image_pixels.decode_image(photographs.encoded(image, file_format, quality=98), 1)
    assert np.abs(gray.numpy()[..., 0] - image @ GRAY).mean() < 3
    colour = image_pixels.decode_image(photographs.encoded(image, file_format, 'L'), 3)
    np.testing.assert_array_equal(colour[..., 0], colour[..., 2])


def test_bicubic_resizing_stays_in_the_range_of_pixels():
    step = np.zeros((8, 8, 3), np.uint8)
    step[:, 4:] = 255
    resized = image_pixels.resize(step, (32, 32), 'bicubic').numpy()
    expected = tf.image.resize(step, [32, 32], method='bicubic').numpy()
    assert expected.min() < -1 and expected.max() > 256
    np.testing.assert_array_equal(resized, np.floor(expected.clip(0, 255) + 0.5))


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
