"""Decoding of images into pixels."""

import dataclasses
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from lingpipe.input import image_augmentation

PROBLEM = 'is empty, cut off, damaged or no image of the right size'


def decode_image(encoded: tf.Tensor, num_channels: int,
                 choose_box: Callable[[tf.Tensor], tf.Tensor] | None = None) -> tf.Tensor:
    """Decode an image, or a part of it, into uint8 [height, width, num_channels].

    Args:
        choose_box: function from the image's shape, int32 [3], to a box as in `Cropping`. None: the whole image.
    """

    def of_jpeg():
        if choose_box is None:
            return tf.io.decode_jpeg(encoded, channels=num_channels)
        shape = tf.io.extract_jpeg_shape(encoded)
        return _decode_jpeg_box(encoded, choose_box(shape), shape[1], num_channels)

    def of_others():
        image = tf.io.decode_image(encoded, channels=num_channels, expand_animations=False)
        if choose_box is None:
            return image
        row, column, height, width = tf.unstack(choose_box(tf.shape(image)))
        return image[row:row + height, column:column + width]

    return tf.ensure_shape(tf.cond(tf.io.is_jpeg(encoded), of_jpeg, of_others), [None, None, num_channels])


def resize(image: tf.Tensor, size: tuple[int, int], method: str = 'bilinear') -> tf.Tensor:
    """Resize a uint8 image [height, width, channels] to `size`, (height, width). The result is uint8."""
    image = tf.image.resize(image, size, method=method)
    # Bicubic interpolation overshoots the range of pixels; quantising is one operation instead of four.
    quantised = tf.raw_ops.QuantizeV2(
        input=image, min_range=0.0, max_range=255.0, T=tf.quint8, mode='MIN_COMBINED', round_mode='HALF_AWAY_FROM_ZERO')
    return tf.bitcast(quantised.output, tf.uint8)


def _decode_jpeg_box(encoded, box, image_width, num_channels):
    row, column, height, width = tf.unstack(box)
    # Edge colours depend on neighbouring pixels, so one more column on each side is decoded, then dropped.
    left = tf.minimum(column, 1)
    right = tf.minimum(image_width - column - width, 1)
    wider = tf.stack([row, column - left, height, left + width + right])
    return tf.io.decode_and_crop_jpeg(encoded, wider, channels=num_channels)[:, left:left + width]


def map_rows(function: Callable[..., Any], rows: tuple[tf.Tensor, ...], fallback: Any) -> Any:
    """Call a function on each row of tensors. Return the nest of results `[n, ...]`.

    Args:
        rows: tensors `[n, ...]`; n must be positive.
        fallback: result for a row on which the function fails. It must have the same shapes as the other results.
    """
    # Only in a dataset can TensorFlow continue after an error. All rows share one dataset, because creating a dataset
    # takes as long as decoding 64 x 64 pixels:
    #                  rows -> function -> drop errors --\
    #                                                      batch -> put each where its row is, the fallback elsewhere
    #     fallback, numbered -1 ------------------------/
    num_rows = tf.shape(rows[0])[0]
    numbered = tf.data.Dataset.from_tensor_slices((tf.range(num_rows), *rows))
    results = numbered.map(lambda number, *row: (number, function(*row)))
    results = tf.data.Dataset.from_tensors((-1, fallback)).concatenate(results.ignore_errors())
    numbers, values = results.batch(tf.cast(num_rows + 1, tf.int64)).get_single_element()
    return tf.cond(
        tf.size(numbers) == num_rows + 1, lambda: tf.nest.map_structure(lambda value: value[1:], values),
        lambda: _placed(values, numbers, num_rows))


def _placed(values, numbers, num_rows):
    """Move each value to its row, and fill other rows with the fallback."""
    sources = tf.tensor_scatter_nd_update(  # value 0 is the fallback
        tf.zeros([num_rows], tf.int32), numbers[1:, tf.newaxis], tf.range(1, tf.size(numbers)))
    return tf.nest.map_structure(lambda value: tf.gather(value, sources), values)


@dataclasses.dataclass(frozen=True)
class PixelReader:
    """A reader that decodes, crops and resizes images. An unreadable image gets black pixels."""

    size: tuple[int, int, int]  # (height, width, channels) of the pixels
    cropping: image_augmentation.Cropping | None  # None: whole images
    resizes: bool  # whether whole images are resized; otherwise they already have that size

    def read(self, images: tf.Tensor, seeds: tf.Tensor | None) -> tuple[tf.Tensor, tf.Tensor]:
        """Read encoded images, string [n].

        Args:
            seeds: int32 [n, 2 or more], which draw random crops. None: crops are central.

        Returns:
            Pixels, uint8 [n, *size], and whether each image is readable, bool [n].
        """
        rows = (images,) if seeds is None else (images, seeds)
        return map_rows(self._pixels, rows, (tf.zeros(self.size, tf.uint8), tf.constant(False)))

    def _pixels(self, encoded, seed=None):
        image = decode_image(encoded, self.size[2], self._box(seed))
        if self.cropping is not None:
            image = resize(image, self.size[:2], self.cropping.method)
        elif self.resizes:
            image = resize(image, self.size[:2])
        return tf.ensure_shape(image, self.size), tf.constant(True)

    def _box(self, seed):
        """Return the function that chooses the box, or None for the whole image."""
        if self.cropping is None:
            return None
        if seed is None:
            return self.cropping.central_box
        return lambda shape: self.cropping.random_box(shape, seed[:2])
