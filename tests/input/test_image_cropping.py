import numpy as np
import pytest
import tensorflow as tf

from lingpipe.input import image_augmentation

CROPPINGS = [image_augmentation.INCEPTION, image_augmentation.RESNET]


def boxes(cropping, shape, count=300):
    draw = tf.function(lambda seed: cropping.random_box(tf.constant(shape), seed))
    return np.stack([draw(tf.constant([seed, 0])) for seed in range(count)])


@pytest.mark.parametrize('cropping', CROPPINGS)
def test_random_boxes_lie_in_the_image_and_in_the_published_ranges(cropping):
    row, column, height, width = boxes(cropping, [375, 500, 3]).T
    area = height * width / (375 * 500)
    assert np.all((row >= 0) & (column >= 0) & (row + height <= 375) & (column + width <= 500))
    assert 0.079 < area.min() < 0.15
    assert 0.8 < area.max() <= 1
    assert np.all((width / height > 0.74) & (width / height < 1.35))
    assert row.max() > 200 and column.max() > 250


@pytest.mark.parametrize('cropping', CROPPINGS)
def test_equal_seeds_draw_equal_boxes(cropping):
    first, again = boxes(cropping, [375, 500, 3], 20), boxes(cropping, [375, 500, 3], 20)
    np.testing.assert_array_equal(first, again)
    assert len(np.unique(first, axis=0)) == 20


@pytest.mark.parametrize('cropping', CROPPINGS)
def test_where_no_box_can_be_drawn_the_middle_is_taken(cropping):
    """A box of 4/3 at most has less than 8 % of an image that is 20 times as wide as high."""
    shape = [20, 400, 3]
    np.testing.assert_array_equal(boxes(cropping, shape, 5), [cropping.central_box(tf.constant(shape))] * 5)


def test_evaluation_looks_at_seven_eighths_of_both_sides_or_at_a_square():
    shape = tf.constant([400, 640, 3])
    np.testing.assert_array_equal(image_augmentation.INCEPTION.central_box(shape), [25, 40, 350, 560])
    np.testing.assert_array_equal(image_augmentation.RESNET.central_box(shape), [25, 145, 350, 350])
    np.testing.assert_array_equal(image_augmentation.RESNET.central_box(tf.constant([256, 256, 3])), [16, 16, 224, 224])
