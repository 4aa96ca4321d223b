"""Decoding: from encoded images to the pixels of examples, and the problems of images that cannot be used."""

import dataclasses
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from lingpipe.input import image_augmentation


def decode_image(encoded: tf.Tensor, num_channels: int,
                 choose_box: Callable[[tf.Tensor], tf.Tensor] | None = None) -> tuple[tf.Tensor, tf.Tensor]:
    """Decode a PNG, JPEG, GIF or BMP image, or a part of it; of a JPEG only that part is decoded.

    Args:
        num_channels: 1 (gray) or 3 (RGB); the decoder converts.
        choose_box: function from the shape int32 [3] of the image to the box int32 [4] (row, column, height, width)
            that is wanted; None: the whole image.

    Returns:
        Tuple of uint8 [height, width, num_channels], and the number of channels that are stored.

    Raises:
        tf.errors.InvalidArgumentError: the image is truncated or corrupt, or the string is not an image.
    """

    def of_jpeg():
        shape = tf.io.extract_jpeg_shape(encoded)
        if choose_box is None:
            return tf.io.decode_jpeg(encoded, channels=num_channels), shape[2]
        return _decode_jpeg_box(encoded, choose_box(shape), shape[1], num_channels), shape[2]

    def of_others():
        image, stored_channels = _decode_with_channels(encoded, num_channels)
        if choose_box is None:
            return image, stored_channels
        row, column, height, width = tf.unstack(choose_box(tf.shape(image)))
        return image[row:row + height, column:column + width], stored_channels

    image, stored_channels = tf.cond(tf.io.is_jpeg(encoded), of_jpeg, of_others)
    return tf.ensure_shape(image, [None, None, num_channels]), stored_channels


def resize(image: tf.Tensor, image_size: int, method: str = 'bilinear') -> tf.Tensor:
    """Resize an image, uint8 [height, width, channels], of any aspect ratio to a square; the result is uint8."""
    image = tf.image.resize(image, [image_size, image_size], method=method)
    # Bicubic interpolation overshoots the range of pixels; quantising is one operation instead of four.
    quantised = tf.raw_ops.QuantizeV2(
        input=image, min_range=0.0, max_range=255.0, T=tf.quint8, mode='MIN_COMBINED', round_mode='HALF_AWAY_FROM_ZERO')
    return tf.bitcast(quantised.output, tf.uint8)


def _decode_jpeg_box(encoded, box, image_width, num_channels):
    """Decode one more column on either side and drop it: colours at the edge depend on the neighbouring pixels."""
    row, column, height, width = tf.unstack(box)
    left = tf.minimum(column, 1)
    right = tf.minimum(image_width - column - width, 1)
    wider = tf.stack([row, column - left, height, left + width + right])
    return tf.io.decode_and_crop_jpeg(encoded, wider, channels=num_channels)[:, left:left + width]


def _decode_with_channels(encoded, num_channels):
    image = tf.io.decode_image(encoded, expand_animations=False)
    stored_channels = tf.shape(image)[2]
    is_bmp_or_gif = tf.reduce_any(tf.strings.substr(encoded, 0, 2) == tf.constant(['BM', 'GI']))
    converted = tf.case([
        (stored_channels == num_channels, lambda: image),
        (is_bmp_or_gif, lambda: _in_channels(image, stored_channels, num_channels))],
        lambda: tf.io.decode_image(encoded, channels=num_channels, expand_animations=False))
    return converted, stored_channels


def _in_channels(image, stored_channels, num_channels):
    """Convert an image of 1, 3 or 4 channels, which the decoders of BMP and GIF do not do."""
    colours = tf.cond(stored_channels == 1, lambda: tf.repeat(image, 3, axis=-1), lambda: image[..., :3])
    colours = tf.ensure_shape(colours, [None, None, 3])
    return tf.image.rgb_to_grayscale(colours) if num_channels == 1 else colours


def map_rows(function: Callable[..., Any], rows: tuple[tf.Tensor, ...], fallback: Any) -> Any:
    """Call a function on each row of tensors, one after another, and return the nest of results `[n, ...]`.

    TensorFlow continues after an error only in a dataset. One dataset is used for many rows, because setting it up
    takes as long as decoding 64 x 64 pixels:

    ```
                 rows -> function -> drop errors --\\
                                                     batch -> put each where its row is, the fallback elsewhere
    fallback, numbered -1 ------------------------/
    ```

    Args:
        function: from the parts of a row to a nest of tensors of static shapes.
        rows: tuple of tensors `[n, ...]`, n > 0.
        fallback: nest of tensors like the function's result, for rows for which it fails.
    """
    num_rows = tf.shape(rows[0])[0]
    numbered = tf.data.Dataset.from_tensor_slices((tf.range(num_rows), *rows))
    results = numbered.map(lambda number, *row: (number, function(*row)))
    results = tf.data.Dataset.from_tensors((-1, fallback)).concatenate(results.ignore_errors())
    numbers, values = results.batch(tf.cast(num_rows + 1, tf.int64)).get_single_element()
    return tf.cond(
        tf.size(numbers) == num_rows + 1, lambda: tf.nest.map_structure(lambda value: value[1:], values),
        lambda: _placed(values, numbers, num_rows))


def _placed(values, numbers, num_rows):
    """Put each value in the place of its number, and the first value, the fallback, in all other places."""
    sources = tf.tensor_scatter_nd_update(
        tf.zeros([num_rows], tf.int32), numbers[1:, tf.newaxis], tf.range(1, tf.size(numbers)))
    return tf.nest.map_structure(lambda value: tf.gather(value, sources), values)


@dataclasses.dataclass(frozen=True)
class PixelReader:
    """Decodes, crops and resizes some images, one after another; the pixels of a bad image are black.

    An image is bad if it is empty, truncated, corrupt, not an image, or stored with other than 1 or 3 channels: CMYK
    and transparency have no unique conversion.
    """

    size: tuple[int, int, int]  # (height, width, channels) of the pixels
    cropping: image_augmentation.Cropping | None  # None: whole images
    resizes: bool  # whether whole images are resized; otherwise they already have that size
    training: bool  # whether images are cropped at random; otherwise from the middle

    def read(self, images: tf.Tensor, identifiers: tf.Tensor, seeds: tf.Tensor | None) -> tuple[tf.Tensor, tf.Tensor]:
        """Read encoded images.

        Args:
            images: string [n].
            identifiers: string [n], TFDS's identifiers of the examples.
            seeds: int32 [n, 2 or more], the first two of which draw the box; None if nothing is drawn.

        Returns:
            Tuple of uint8 [n, *size], and the problem of each, string [n]: empty, or the identifier, a line end, and a
            reason that begins with a verb.
        """
        if seeds is None:
            seeds = tf.zeros([tf.size(images), 2], tf.int32)
        no_problems, black = tf.fill(tf.shape(images), ''), tf.zeros(self.size, tf.uint8)
        found, num_channels = map_rows(self._pixels, (images, seeds), (black, tf.constant(0)))
        is_good = (num_channels == 1) | (num_channels == 3)

        def with_problems():
            problems = tf.strings.join([identifiers, _reasons(images, num_channels)], '\n')
            return tf.where(is_good[:, tf.newaxis, tf.newaxis, tf.newaxis], found, black), tf.where(
                is_good, '', problems)

        return tf.cond(tf.reduce_all(is_good), lambda: (found, no_problems), with_problems)

    def _pixels(self, encoded, seed):
        image, num_channels = decode_image(encoded, self.size[2], self._box(seed))
        return self._resized(image), num_channels

    def _box(self, seed):
        """Return the function that chooses the box, or None for the whole image."""
        if self.cropping is None:
            return None
        if not self.training:
            return self.cropping.central_box
        return lambda shape: self.cropping.random_box(shape, seed[:2])

    def _resized(self, image):
        if self.cropping is not None:
            image = resize(image, self.size[0], self.cropping.method)
        elif self.resizes:
            image = resize(image, self.size[0])
        return tf.ensure_shape(image, self.size)


def _reasons(images, num_channels):
    """Return the problems of images, string [n]; an image that was not decoded has 0 channels."""
    undecoded = tf.where(
        tf.strings.length(images) == 0, 'is empty', 'is cut off, damaged or no image of the right size')
    unusual = tf.strings.join(
        ['has ', tf.strings.as_string(num_channels), ' channels (CMYK or transparency) and not 1 or 3'])
    return tf.where(num_channels == 0, undecoded, unusual)
