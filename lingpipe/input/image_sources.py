"""Sources of images, in memory or in files, and the list of bad records.

```
files -> encoded images, shuffled through a buffer -> decode, crop -> batches
memory -> numbers, a random permutation -> look up the pixels of a batch
```
"""

import functools
import threading
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
    """The images of a dataset, for training and evaluation."""

    def __init__(self, params: hyperparams.Params, data: Any, cropping: image_augmentation.Cropping | None) -> None:
        self._params = params
        self._data = data
        self._cropping = cropping

    def references(self, order_seed: tf.Tensor | None = None) -> tf.data.Dataset:
        """Return a dataset with one element per image, for `batches`. `order_seed`, int64 [2], shuffles the images."""
        if self._is_kept_in_memory:
            return row_order.numbers(self._data.num_examples, order_seed)  # indices into `_kept`
        buffer_size = self._params.shuffle_buffer_size or min(self._data.num_examples, DEFAULT_SHUFFLE_BUFFER_SIZE)
        return row_order.from_files(self._data.encoded_examples, order_seed, buffer_size)

    def batches(self, examples: tf.data.Dataset, batch_size: int, training: bool) -> tf.data.Dataset:
        """Read batches of pixels.

        Args:
            examples: dataset of pairs (element of `references`, augmentation seed).
            training: whether to crop at random, and to drop a last batch that is not full.

        Returns:
            `tf.data.Dataset` of (images uint8 [batch, height, width, channels], labels [batch], seeds [batch, length],
            bad [batch]). `bad` has the name of each bad record, and '' for each good record.
        """
        def decoded(example, seeds):
            pixels, labels, bad = self._pixels(*example, seeds if training else None)
            return pixels, labels, seeds, bad

        if not self._is_kept_in_memory:
            some = base_input.parallel_map(examples.batch(_ROWS_PER_CALL), decoded)
            return some.rebatch(batch_size, drop_remainder=training)
        columns = self._kept

        def looked_up(numbers, seeds):
            images, labels, bad = (tf.gather(column, numbers) for column in columns)
            return images, labels, seeds, bad

        return examples.batch(batch_size, drop_remainder=training).map(looked_up)

    @functools.cached_property
    def _kept(self):
        """Pixels and labels of all images, and names of bad records."""
        count = self._data.num_examples
        logging.info('Loading %d images of %s into memory.', count, self._data.name)
        examples = base_input.parallel_map(self._data.encoded_examples().batch(_ROWS_PER_CALL), self._pixels)
        with tf.device('CPU:0'):
            return examples.unbatch().batch(count, drop_remainder=True).get_single_element()

    def _pixels(self, images, labels, identifiers, seeds=None):
        *stored, num_channels = self._data.image_shape
        reader = image_pixels.PixelReader((*self._size, num_channels), self._cropping, resizes=None in stored)
        pixels, is_good = reader.read(images, seeds)
        return pixels, labels, tf.where(is_good, '', identifiers)

    @property
    def _is_kept_in_memory(self):
        height, width = self._size
        num_bytes = self._data.num_examples * height * width * self._data.image_shape[2]
        return not self._cropping and num_bytes <= MEMORY_LIMIT_BYTES

    @property
    def _size(self):
        """Height and width of the images between decoding and augmentation."""
        stored = self._data.image_shape[:2]
        return (self._params.image_size,) * 2 if self._cropping or None in stored else stored


class BadRecords:
    """The bad records that have been read. A record that is read several times counts once."""

    def __init__(self, max_bad_records: int, source: str) -> None:
        self.reasons: dict[str, str] = {}  # from the name of a record to its problem
        self._max_bad_records = max_bad_records
        self._source = source
        self._lock = threading.Lock()

    def note(self, bad: tf.Tensor) -> tf.Tensor:
        """Build an operation that notes the bad records of a batch.

        If there are too many bad records, the operation raises `tf.errors.InvalidArgumentError`.

        Args:
            bad: string [batch] with the TFDS name of each bad record, and '' for each good record.

        Returns:
            float32 [batch] with 1 for each good record, and 0 for each bad record.
        """
        is_good = bad == ''
        refusal = tf.cond(
            tf.reduce_all(is_good), lambda: tf.constant(''),
            lambda: tf.ensure_shape(tf.numpy_function(self._note, [bad], tf.string), []))
        with tf.control_dependencies([tf.debugging.Assert(refusal == '', [refusal])]):
            return tf.cast(is_good, tf.float32)

    def _note(self, bad):
        """Note bad records, and return an error message if there are too many."""
        for identifier in filter(None, bad):
            file, _, number = identifier.decode(errors='replace').rpartition('__')  # TFDS joins them in this way
            name = f'record {number} of {file}'
            with self._lock:
                if name in self.reasons:
                    continue
                self.reasons[name] = image_pixels.PROBLEM
                count = len(self.reasons)
            if count > self._max_bad_records:
                return (f'max_bad_records: {count} records of {self._source} cannot be used, {self._max_bad_records} '
                        f'are allowed; the last: {name} {image_pixels.PROBLEM}. Repair the data, or set '
                        'max_bad_records higher.').encode()
            logging.warning('Skipped %s, which %s; %d of at most %s bad records of %s.', name, image_pixels.PROBLEM,
                            count, self._max_bad_records, self._source)
        return b''
