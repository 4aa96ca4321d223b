"""Where images come from, memory or files, in an order that depends only on a seed.

```
files -> references, shuffled through a buffer ------------------------> decode, crop -> batches
memory -> numbers, a random permutation -> look up encoded images -----> decode, crop -> batches    if parts are cropped
memory -> numbers, a random permutation -> look up pixels of a batch                                if images are whole
```
"""

import functools
from typing import Any

import tensorflow as tf
from absl import logging

from lingpipe import hyperparams
from lingpipe.input import base_input, image_augmentation, image_pixels, row_order

# Number of images in one call. With more images, calls cost less; with fewer, threads share the work better.
_ROWS_PER_CALL = 32
MEMORY_LIMIT_BYTES = 512 * 2**20
DEFAULT_SHUFFLE_BUFFER_SIZE = 10_000


class ImageSources:
    """Makes the examples of training and evaluation; both share what is in memory.

    Args:
        params: `ImageInput.Params()`.
        data: `tfds_builders.TfdsImages` or `digits.DigitsImages`.
        cropping: `Cropping` of the augmentation, or None.
        num_channels: 1 or 3.
    """

    def __init__(self, params: hyperparams.Params, data: Any,
                 cropping: image_augmentation.Cropping | None, num_channels: int) -> None:
        self._params = params
        self._data = data
        self._cropping = cropping
        self._num_channels = num_channels

    def references(self, order_seed: tf.Tensor | None = None) -> tf.data.Dataset:
        """Returns one element for each example, cheap to skip.

        Args:
            order_seed: int64 [2], may be a tensor, that draws the order; None: stored order.
        """
        if self._is_kept_in_memory:
            return row_order.numbers(self._data.num_examples, order_seed)
        buffer_size = self._params.shuffle_buffer_size or min(self._data.num_examples, DEFAULT_SHUFFLE_BUFFER_SIZE)
        return row_order.from_files(self._data.encoded_examples, order_seed, buffer_size)

    def batches(self, examples: tf.data.Dataset, batch_size: int, drop_remainder: bool,
                training: bool) -> tf.data.Dataset:
        """Reads the pixels of examples.

        Args:
            examples: `tf.data.Dataset` of pairs (reference, seed of the augmentation).
            batch_size: number of examples in a batch.
            drop_remainder: whether a last batch with fewer examples is left out.
            training: whether images are cropped at random; otherwise from the middle.

        Returns:
            `tf.data.Dataset` of (images uint8 [batch, height, width, channels], labels [batch], seeds [batch, length],
            problems [batch]). A problem is an empty string, or as of `base_input.describe`.
        """
        columns = self._kept if self._is_kept_in_memory else None
        read = self._reader(training).read

        def looked_up(references):
            return references if columns is None else [tf.gather(column, references) for column in columns]

        def with_pixels(references, seeds):
            images, labels, identifiers = looked_up(references)
            pixels, problems = read(images, identifiers, seeds)
            return pixels, labels, seeds, problems

        def of_pixels(numbers, seeds):
            images, labels, problems = looked_up(numbers)
            return images, labels, seeds, problems

        if columns is not None and not self._cropping:
            return examples.batch(batch_size, drop_remainder).map(of_pixels)
        some = base_input.parallel_map(examples.batch(_ROWS_PER_CALL), with_pixels)
        return some.rebatch(batch_size, drop_remainder)

    @functools.cached_property
    def _kept(self):
        """Encoded images, labels and identifiers, or, if nothing is cropped, pixels, labels and problems."""
        count = self._data.num_examples
        logging.info('Loading %d images of %s into memory.', count, self._data.name)
        examples = self._data.encoded_examples().batch(_ROWS_PER_CALL)
        if not self._cropping:
            examples = base_input.parallel_map(examples, self._pixels)
        with tf.device('CPU:0'):
            return examples.unbatch().batch(count, drop_remainder=True).get_single_element()

    def _pixels(self, images, labels, identifiers):
        pixels, problems = self._reader(training=False).read(images, identifiers, seeds=None)
        return pixels, labels, problems

    @property
    def _is_kept_in_memory(self):
        p = self._params
        if p.cache is not None:
            return p.cache
        height, width = self._size
        fits = self._data.num_examples * height * width * self._num_channels <= MEMORY_LIMIT_BYTES
        return fits and not self._cropping and not p.data_service

    @property
    def _size(self):
        """Height and width of the images between decoding and augmentation."""
        stored = self._data.image_shape[:2]
        return (self._params.image_size,) * 2 if self._cropping or None in stored else stored

    def _reader(self, training):
        return image_pixels.PixelReader(
            size=(*self._size, self._num_channels), cropping=self._cropping, resizes=None in self._data.image_shape[:2],
            training=training, trusts=self._params.max_bad_records is None)
