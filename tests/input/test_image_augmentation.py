import numpy as np
import pytest
import tensorflow as tf

from lingpipe.input import image_augmentation

RANDOM = sorted(set(image_augmentation.AUGMENTATIONS) - {'none'})


def random_images(batch=6, size=8, channels=1):
    return np.random.default_rng(0).normal(size=(batch, size, size, channels)).astype(np.float32)


def random_seeds(batch, seed=0):
    shape = (batch, image_augmentation.SEED_LENGTH)
    return np.random.default_rng(seed).integers(-2**31, 2**31, shape).astype(np.int32)


def warp(images, image_size, shift=(0.0, 0.0), rotation=0.0, zoom=1.0):
    batch = len(images)
    return image_augmentation.warp(
        tf.constant(images), image_size, shift=tf.constant([shift] * batch), rotation=tf.fill([batch], rotation),
        zoom=tf.fill([batch], zoom)).numpy()


@pytest.mark.parametrize('image_size', [8, 13, 32])
def test_a_warp_by_nothing_is_a_bilinear_resize(image_size):
    images = random_images()
    expected = tf.image.resize(images, [image_size, image_size], method='bilinear')
    np.testing.assert_allclose(warp(images, image_size), expected, atol=1e-5)


def test_a_shift_by_whole_pixels_moves_the_image_right_and_down():
    images = random_images()
    shifted = warp(images, 8, shift=(2.0, 1.0))
    np.testing.assert_allclose(shifted[:, 1:, 2:], images[:, :-1, :-2], atol=1e-5)


def test_a_quarter_turn_is_clockwise():
    images = random_images()
    np.testing.assert_allclose(warp(images, 8, rotation=np.pi / 2), np.rot90(images, k=-1, axes=(1, 2)), atol=1e-4)


def test_digits_move_by_at_most_what_is_documented():
    """The centre of mass of a dot shows the shift; with a dot off the centre, rotation and zoom as well."""
    images = np.zeros((500, 17, 17, 1), np.float32)
    images[:, 8, 8] = 1
    warped = image_augmentation.warp_digits(tf.constant(images), random_seeds(500), 68).numpy()
    mass = warped.sum(axis=(1, 2, 3))
    centres = [(warped.sum(axis=(axis, 3)) * (np.arange(68) + 0.5) / 4).sum(axis=1) / mass - 8.5 for axis in (1, 2)]
    assert 0.5 < np.abs(centres).max() < 0.6
    zoom = np.sqrt(mass / 16)
    assert 0.92 < zoom.min() < 0.95
    assert 1.05 < zoom.max() < 1.08


@pytest.mark.parametrize('name', ['crop_flip', 'crop_flip_cutout'])
def test_crops_are_cut_from_the_padded_image_or_its_mirror_image(name):
    images = random_images(batch=200, size=12, channels=3)
    crops = image_augmentation.AUGMENTATIONS[name].train(tf.constant(images), random_seeds(200), 12).numpy()
    padded = np.pad(images, [(0, 0), (4, 4), (4, 4), (0, 0)])
    found = set()
    for image, mirrored, crop in zip(padded, padded[:, :, ::-1], crops):
        visible = crop != 0
        matches = [
            (is_mirrored, y, x) for is_mirrored, source in enumerate((image, mirrored)) for y in range(9)
            for x in range(9) if np.array_equal(np.where(visible, source[y:y + 12, x:x + 12], 0), crop)
        ]
        assert matches
        found.update(matches[:1])
    assert {part[0] for part in found} == {0, 1}
    assert {part[1] for part in found} == {part[2] for part in found} == set(range(9))


def test_cutout_clears_a_square_of_half_the_side_that_may_leave_the_image():
    images = np.ones((300, 32, 32, 3), np.float32)
    seeds = random_seeds(300)
    cut = image_augmentation.crop_flip_and_cut_out(tf.constant(images), seeds, 32).numpy()
    missing = (image_augmentation.crop_and_flip(tf.constant(images), seeds, 32).numpy() - cut)[..., 0]
    heights, widths = missing.max(axis=2).sum(axis=1), missing.max(axis=1).sum(axis=1)
    assert heights.max() == widths.max() == 16
    assert min(heights.min(), widths.min()) < 12


def test_images_that_are_not_cropped_are_mirrored_at_their_new_size():
    images, seeds = tf.constant(random_images(batch=8, size=8)), random_seeds(8)
    found = image_augmentation.flip_and_cut_out(images, seeds, 16).numpy()
    whole = image_augmentation.resize(images, 16).numpy()
    expected = np.where(seeds[:, 2, None, None, None] % 2 == 1, whole[:, :, ::-1], whole)
    np.testing.assert_array_equal(found, np.where(found == 0, 0, expected))
    assert all(0.5 < np.mean(image != 0) < 0.95 for image in found)


@pytest.mark.parametrize('name', RANDOM)
def test_an_image_depends_on_its_own_seed_only(name):
    train = image_augmentation.AUGMENTATIONS[name].train
    images, seeds = random_images(size=16), random_seeds(6)
    together = train(tf.constant(images), seeds, 16)
    alone = tf.concat([train(tf.constant(images[i:i + 1]), seeds[i:i + 1], 16) for i in range(6)], axis=0)
    np.testing.assert_array_equal(together, alone)
    assert not np.array_equal(together, train(tf.constant(images), random_seeds(6, seed=1), 16))


@pytest.mark.parametrize(('dataset', 'channels'), [('digits', 1), ('cifar10', 3), ('imagenet2012', 3), ('mnist', 1)])
def test_normalisation_is_exact_for_every_value_of_a_pixel(dataset, channels):
    pixels = np.arange(256, dtype=np.uint8).reshape(1, 16, 16, 1).repeat(channels, axis=3)
    mean, deviation = image_augmentation._PIXEL_STATISTICS.get(dataset, ([0.5], [0.5]))
    expected = (pixels / 255 - mean) / deviation
    np.testing.assert_allclose(image_augmentation.normalize(tf.constant(pixels), dataset), expected, atol=5e-7)


@pytest.mark.parametrize('channels', [1, 3])
def test_flipping_mirrors_images_with_an_odd_draw_and_leaves_others(channels):
    images, seeds = random_images(batch=20, size=6, channels=channels), random_seeds(20)
    mirrored = seeds[:, 2] % 2 == 1
    flipped = image_augmentation.flip(tf.constant(images), tf.constant(seeds), 6).numpy()
    np.testing.assert_array_equal(flipped[mirrored], images[mirrored][:, :, ::-1])
    np.testing.assert_array_equal(flipped[~mirrored], images[~mirrored])
    assert 0 < mirrored.sum() < 20


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
def test_where_no_box_can_be_drawn_the_middle_is_taken(cropping):
    """A box of 4/3 at most has less than 8 % of an image that is 20 times as wide as high."""
    shape = [20, 400, 3]
    np.testing.assert_array_equal(boxes(cropping, shape, 5), [cropping.central_box(tf.constant(shape))] * 5)


def test_evaluation_looks_at_seven_eighths_of_both_sides_or_at_a_square():
    shape = tf.constant([400, 640, 3])
    np.testing.assert_array_equal(image_augmentation.INCEPTION.central_box(shape), [25, 40, 350, 560])
    np.testing.assert_array_equal(image_augmentation.RESNET.central_box(shape), [25, 145, 350, 350])
    np.testing.assert_array_equal(image_augmentation.RESNET.central_box(tf.constant([256, 256, 3])), [16, 16, 224, 224])
