"""From an encoded image to pixels, one at a time: whole, or only the part that training or evaluation looks at."""

import tensorflow as tf


def decode_image(encoded, num_channels, choose_box=None, fused=True):
    """Decodes a PNG, JPEG, GIF or BMP image, or a part of it.

    ```
                         fused: shape -> box -> decode only the box
    encoded -> is JPEG? <
                         else: decode -> box -> cut it out
    ```

    Both ways give the same pixels.

    Args:
        encoded: scalar string.
        num_channels: 1 (gray) or 3 (RGB); the decoder converts.
        choose_box: function from the shape int32 [3] of the image to the box int32 [4] (row, column, height, width) that is
            wanted; None: all of it.
        fused: whether of a JPEG no more is decoded than the box needs.

    Returns:
        Tuple of uint8 [height, width, num_channels], and the number of channels that are stored.

    Raises:
        tf.errors.InvalidArgumentError: the image is cut off, damaged, or none.
    """

    def cut(image):
        return image if choose_box is None else cut_out(image, choose_box)

    def of_jpeg():
        shape = tf.io.extract_jpeg_shape(encoded)
        if fused and choose_box is not None:
            return _decode_jpeg_box(encoded, choose_box(shape), shape[1], num_channels), shape[2]
        return cut(tf.io.decode_jpeg(encoded, channels=num_channels)), shape[2]

    def of_others():
        image, stored_channels = _decode_with_channels(encoded, num_channels)
        return cut(image), stored_channels

    image, stored_channels = tf.cond(tf.io.is_jpeg(encoded), of_jpeg, of_others)
    return tf.ensure_shape(image, [None, None, num_channels]), stored_channels


def cut_out(image, choose_box):
    """Returns the part of an image that `choose_box` gives for its shape.

    Args:
        image: uint8 [height, width, channels].
        choose_box: as in `decode_image`.
    """
    row, column, height, width = tf.unstack(choose_box(tf.shape(image)))
    return image[row:row + height, column:column + width]


def resize(image, image_size, method='bilinear'):
    """Resizes square-wise; the aspect ratio is not kept.

    Args:
        image: uint8 [height, width, channels].
        image_size: height and width of the result.
        method: 'bilinear' or 'bicubic'.

    Returns:
        uint8 [image_size, image_size, channels].
    """
    image = tf.image.resize(image, [image_size, image_size], method=method)
    # Bicubic interpolation leaves the range. Pixels are quantised numbers: one operation instead of four.
    quantised = tf.raw_ops.QuantizeV2(
        input=image, min_range=0.0, max_range=255.0, T=tf.quint8, mode='MIN_COMBINED', round_mode='HALF_AWAY_FROM_ZERO')
    return tf.bitcast(quantised.output, tf.uint8)


def _decode_jpeg_box(encoded, box, image_width, num_channels):
    """Decodes one column more on either side, which is dropped: at the edge, colours lack their neighbours' share."""
    row, column, height, width = tf.unstack(box)
    left = tf.minimum(column, 1)
    right = tf.minimum(image_width - column - width, 1)
    wider = tf.stack([row, column - left, height, left + width + right])
    return tf.io.decode_and_crop_jpeg(encoded, wider, channels=num_channels)[:, left:left + width]


def _decode_with_channels(encoded, num_channels):
    image = tf.io.decode_image(encoded, expand_animations=False)
    stored_channels = tf.shape(image)[2]
    converted = tf.cond(
        stored_channels == num_channels, lambda: image,
        lambda: tf.io.decode_image(encoded, channels=num_channels, expand_animations=False))
    return converted, stored_channels
