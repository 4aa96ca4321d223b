"""Sources of the pixels of an epoch: memory, encoded or decoded, or files, in an order that depends only on a seed.

All sources have the same two methods, so that one input pipeline works with all of them:

```
references(order_seed) -> one element for each example, cheap to skip
batch(examples)        -> (images uint8 [batch, height, width, channels], labels [batch], seeds [batch, length],
                           problems [batch]), `examples` being pairs of (reference, seed of the augmentation)
```

A problem is an empty string, or names the record that cannot be used and the reason; see `base_input.describe`.
"""

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from absl import logging

from lingpipe import hyperparams
from lingpipe.input import base_input, image_augmentation, image_pixels, row_order

# Number of images in one call. With more images, calls cost less; with fewer, threads share the work better.
_ROWS_PER_CALL = 32
MEMORY_LIMIT_BYTES = 512 * 2**20
DEFAULT_SHUFFLE_BUFFER_SIZE = 10_000


class MemoryExamples:
    """Pixels, all in memory; a reference is the number of an example.

    Args:
        columns: tuple of images uint8 [n, height, width, channels], labels [n] and problems [n]; see `in_memory`.
    """

    def __init__(self, columns: tuple[tf.Tensor, ...]) -> None:
        self._columns = columns

    def references(self, order_seed: tf.Tensor | None = None) -> tf.data.Dataset:
        """Returns all examples: in stored order without a seed, else in a random permutation.

        Args:
            order_seed: int64 [2], may be a tensor.
        """
        return row_order.numbers(len(self._columns[1]), order_seed)

    def batch(self, examples: tf.data.Dataset, batch_size: int, drop_remainder: bool) -> tf.data.Dataset:
        """Looks up the pixels of a whole batch at once.

        Args:
            examples: `tf.data.Dataset` of pairs (reference, seed of the augmentation).
            batch_size: number of examples in a batch.
            drop_remainder: whether a last batch with fewer examples is left out.

        Returns:
            `tf.data.Dataset` of batches, as at the top of this module.
        """

        def look_up(numbers, seeds):
            images, labels, problems = (tf.gather(column, numbers) for column in self._columns)
            return images, labels, seeds, problems

        return examples.batch(batch_size, drop_remainder).map(look_up)


class MemoryRecords:
    """Images in memory, as strings that are decoded at every visit; a reference is the number of an example.

    Args:
        columns: tuple of images string [n], labels [n] and identifiers or problems [n]; see `in_memory`.
        decode: (images, identifiers or problems, seeds) of some examples -> (uint8 [some, height, width, channels],
            problems).
        num_parallel_calls: how many calls of `decode` run in parallel; None: tuned by tf.data.
    """

    def __init__(self, columns: tuple[tf.Tensor, ...], decode: Callable[..., tuple[tf.Tensor, tf.Tensor]],
                 num_parallel_calls: int | None = None) -> None:
        self._columns = columns
        self._decode = decode
        self._num_parallel_calls = num_parallel_calls

    def references(self, order_seed: tf.Tensor | None = None) -> tf.data.Dataset:
        """Returns all examples as `MemoryExamples` does."""
        return row_order.numbers(len(self._columns[1]), order_seed)

    def batch(self, examples: tf.data.Dataset, batch_size: int, drop_remainder: bool) -> tf.data.Dataset:
        """Works on some images at a time, in parallel, then batches; see `MemoryExamples.batch`."""

        def decoded(numbers, seeds):
            images, labels, identifiers = (tf.gather(column, numbers) for column in self._columns)
            pixels, problems = self._decode(images, identifiers, seeds)
            return pixels, labels, seeds, problems

        return map_some(examples, decoded, self._num_parallel_calls).rebatch(batch_size, drop_remainder)


class StreamedExamples:
    """Encoded images, read again in every epoch; a reference is (encoded image, label, identifier).

    Args:
        read: function from the seed of the order of the files (int64 scalar, or None for stored order) to a
            `tf.data.Dataset` of (encoded image, label, identifier).
        decode: as for `MemoryRecords`.
        shuffle_buffer_size: number of encoded images in the shuffle buffer.
        num_parallel_calls: as for `MemoryRecords`.
    """

    def __init__(self, read: Callable[[tf.Tensor | None], tf.data.Dataset],
                 decode: Callable[..., tuple[tf.Tensor, tf.Tensor]], shuffle_buffer_size: int,
                 num_parallel_calls: int | None = None) -> None:
        self._read = read
        self._decode = decode
        self._shuffle_buffer_size = shuffle_buffer_size
        self._num_parallel_calls = num_parallel_calls

    def references(self, order_seed: tf.Tensor | None = None) -> tf.data.Dataset:
        """Returns all examples: in stored order without a seed, else files and then a buffer of examples shuffled.

        Args:
            order_seed: int64 [2], may be a tensor.
        """
        return row_order.from_files(self._read, order_seed, self._shuffle_buffer_size)

    def batch(self, examples: tf.data.Dataset, batch_size: int, drop_remainder: bool) -> tf.data.Dataset:
        """Works on some images at a time, in parallel, then batches; see `MemoryExamples.batch`."""

        def decoded(references, seeds):
            images, labels, identifiers = references
            pixels, problems = self._decode(images, identifiers, seeds)
            return pixels, labels, seeds, problems

        return map_some(examples, decoded, self._num_parallel_calls).rebatch(batch_size, drop_remainder)


def map_some(examples: tf.data.Dataset, function: Callable[..., Any],
             num_parallel_calls: int | None) -> tf.data.Dataset:
    """Calls a function on small batches of examples; returns its results in their order, to be passed to `rebatch`."""
    return base_input.parallel_map(examples.batch(_ROWS_PER_CALL), function, num_parallel_calls)


def in_memory(batches: tf.data.Dataset, num_examples: int) -> tuple[tf.Tensor, ...]:
    """Returns one tuple of tensors `[num_examples, ...]` with the rows of all batches, on the CPU."""
    with tf.device('CPU:0'):
        return batches.rebatch(num_examples, drop_remainder=True).get_single_element()


class ImageSources:
    """Makes the source of a training run or an evaluation; all of them share what is in memory.

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

    def source(self, training: bool) -> MemoryExamples | MemoryRecords | StreamedExamples:
        """Returns one of the sources above.

        Args:
            training: whether images are cropped at random; otherwise from the middle.
        """
        reader, p = self._reader(training), self._params
        if self._cache == 'encoded':
            return MemoryRecords(self._kept, reader.from_encoded, p.num_parallel_calls)
        if self._cache == 'decoded' and self._cropping:
            return MemoryRecords(self._kept, reader.from_decoded, p.num_parallel_calls)
        if self._cache == 'decoded':
            return MemoryExamples(self._kept)
        buffer_size = p.shuffle_buffer_size or min(self._data.num_examples, DEFAULT_SHUFFLE_BUFFER_SIZE)
        return StreamedExamples(self._data.encoded_examples, reader.from_encoded, buffer_size, p.num_parallel_calls)

    @functools.cached_property
    def _kept(self):
        """The columns in memory: images, labels, and identifiers, or problems of decoded images."""
        logging.info('Loading %d %s images of %s into memory.', self._data.num_examples, self._cache, self._data.name)
        examples = self._data.encoded_examples()
        if self._cache == 'encoded':
            return in_memory(examples.batch(self._data.num_examples), self._data.num_examples)
        try:
            return self._decoded(examples, guarded=False)
        except tf.errors.InvalidArgumentError:  # some image is bad: decode again to find which
            return self._decoded(examples, guarded=True)

    def _decoded(self, examples, guarded):
        reader = self._reader(training=False, guarded=guarded)

        def decoded(images, labels, identifiers):
            if self._cropping:
                kept, problems = reader.whole(images, identifiers)
            else:
                kept, problems = reader.from_encoded(images, identifiers, seeds=None)
            return kept, labels, problems

        batches = map_some(examples, decoded, self._params.num_parallel_calls)
        return in_memory(batches, self._data.num_examples)

    @property
    def _cache(self):
        p = self._params
        if p.cache is not None:
            return p.cache
        height, width = self._size
        fits = self._data.num_examples * height * width * self._num_channels <= MEMORY_LIMIT_BYTES
        return 'decoded' if fits and not self._cropping and not p.data_service else 'none'

    @property
    def _size(self):
        """Height and width of the images between decoding and augmentation."""
        stored = self._data.image_shape[:2]
        return (self._params.image_size,) * 2 if self._cropping or None in stored else stored

    def _reader(self, training, guarded=True):
        p = self._params
        trusts = p.max_bad_records is None
        return image_pixels.PixelReader(
            size=(*self._size, self._num_channels), cropping=self._cropping, resizes=None in self._data.image_shape[:2],
            training=training, fused=p.fuse_decode_and_crop, trusts=trusts, guarded=guarded and not trusts)
