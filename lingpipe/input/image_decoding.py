"""From an encoded image to pixels, one at a time: whole, or only the part that training or evaluation looks at."""

import tensorflow as tf

# Szegedy et al. 2015 (arXiv:1409.4842), section 6: patches of 8 % to 100 % of the image, aspect ratio 3/4 to 4/3.
_CROP_AREA_RANGE = (0.08, 1.0)
_CROP_ASPECT_RATIO_RANGE = (3 / 4, 4 / 3)
_MAX_CROP_ATTEMPTS = 100

# The part of height and width that evaluation keeps; of the released Inception and AmoebaNet models.
_CENTRAL_FRACTION = 0.875


def decode_image(encoded, num_channels):
    """Decodes a whole PNG, JPEG, GIF or BMP image.

    Args:
        encoded: scalar string.
        num_channels: 1 (gray) or 3 (RGB); the decoder converts.

    Returns:
        uint8 [height, width, num_channels].
    """
    image = tf.io.decode_image(encoded, channels=num_channels, expand_animations=False)
    return tf.ensure_shape(image, [None, None, num_channels])


def decode_resized_image(encoded, image_size, num_channels):
    """Decodes a whole image and resizes it (bilinear, the aspect ratio is not kept).

    Returns:
        uint8 [image_size, image_size, num_channels].
    """
    return _resize(decode_image(encoded, num_channels), image_size)


def decode_random_crop(encoded, seed, image_size, num_channels):
    """Decodes and resizes a random part of an image, as the training of Inception does.

    ```
    encoded -> shape -> random box -> decode (of JPEG, only the box) -> resize
    ```

    Szegedy et al. 2015 (arXiv:1409.4842), section 6.

    Args:
        encoded: scalar string.
        seed: integer [2]; equal seeds cut out equal boxes.
        image_size: height and width of the result.
        num_channels: 1 or 3.

    Returns:
        uint8 [image_size, image_size, num_channels].
    """

    def random_box(shape):
        begin, size, _ = tf.image.stateless_sample_distorted_bounding_box(
            shape,
            bounding_boxes=tf.constant([[[0.0, 0.0, 1.0, 1.0]]]),
            seed=seed,
            min_object_covered=0.0,
            aspect_ratio_range=_CROP_ASPECT_RATIO_RANGE,
            area_range=_CROP_AREA_RANGE,
            max_attempts=_MAX_CROP_ATTEMPTS,
        )
        return begin[:2], size[:2]

    return _resize(_decode_box(encoded, random_box, num_channels), image_size)


def decode_central_crop(encoded, image_size, num_channels):
    """Decodes and resizes the middle 87.5 % of height and width, as the evaluation of Inception does.

    Returns:
        uint8 [image_size, image_size, num_channels].
    """

    def central_box(shape):
        size = tf.cast(tf.round(tf.cast(shape[:2], tf.float32) * _CENTRAL_FRACTION), tf.int32)
        return (shape[:2] - size) // 2, size

    return _resize(_decode_box(encoded, central_box, num_channels), image_size)


def _decode_box(encoded, choose_box, num_channels):
    """Decodes the box (begin, size), each (row, column), that `choose_box` gives for the shape of the image."""

    def of_jpeg():
        box = tf.concat(choose_box(tf.io.extract_jpeg_shape(encoded)), axis=0)
        return tf.io.decode_and_crop_jpeg(encoded, box, channels=num_channels)

    def of_others():
        image = decode_image(encoded, num_channels)
        (row, column), (height, width) = (tf.unstack(part) for part in choose_box(tf.shape(image)))
        return image[row:row + height, column:column + width]

    return tf.cond(tf.io.is_jpeg(encoded), of_jpeg, of_others)


def _resize(image, image_size):
    image = tf.image.resize(image, [image_size, image_size], method='bilinear')
    return tf.cast(tf.round(image), tf.uint8)
