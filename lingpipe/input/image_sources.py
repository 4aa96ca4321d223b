"""What the fields of an input ask for: images from memory or from files, read with or without checks."""

import functools

import tensorflow as tf
from absl import logging

from lingpipe.input import image_examples, image_pixels

MEMORY_LIMIT_BYTES = 512 * 2**20
DEFAULT_SHUFFLE_BUFFER_SIZE = 10_000


class ImageSources:
    """Gives the source of a training or an evaluation; what stays in memory serves all of them.

    Args:
        params: `ImageInput.Params()`.
        data: `TfdsImages`.
        cropping: `Cropping` of the augmentation, or None.
        num_channels: 1 or 3.
    """

    def __init__(self, params, data, cropping, num_channels):
        self._params = params
        self._data = data
        self._cropping = cropping
        self._num_channels = num_channels

    def source(self, training):
        """Returns one of the sources of `image_examples`.

        Args:
            training: whether images are cut out at random; else from the middle.
        """
        reader, p = self._reader(training), self._params
        if self._cache == 'encoded':
            return image_examples.MemoryRecords(self._kept, reader.from_encoded, p.num_parallel_calls)
        if self._cache == 'decoded' and self._cropping:
            return image_examples.MemoryRecords(self._kept, reader.from_decoded, p.num_parallel_calls)
        if self._cache == 'decoded':
            return image_examples.MemoryExamples(self._kept)
        read = functools.partial(self._data.encoded_examples, num_parallel_calls=p.num_parallel_calls)
        buffer_size = p.shuffle_buffer_size or min(self._data.num_examples, DEFAULT_SHUFFLE_BUFFER_SIZE)
        return image_examples.StreamedExamples(read, reader.from_encoded, buffer_size, p.num_parallel_calls)

    @functools.cached_property
    def _kept(self):
        """What stays in memory of all examples: images, labels, and identifiers or, of decoded ones, problems."""
        logging.info('Loading %d %s images of %s into memory.', self._data.num_examples, self._cache, self._data.name)
        examples = self._data.encoded_examples(num_parallel_calls=self._params.num_parallel_calls)
        if self._cache == 'encoded':
            return image_examples.in_memory(examples.batch(self._data.num_examples), self._data.num_examples)
        try:
            return self._decoded(examples, guarded=False)
        except tf.errors.InvalidArgumentError:  # some image is bad: once more, to learn which
            return self._decoded(examples, guarded=True)

    def _decoded(self, examples, guarded):
        reader = self._reader(training=False, guarded=guarded)

        def decoded(images, labels, identifiers):
            if self._cropping:
                kept, problems = reader.whole(images, identifiers)
            else:
                kept, problems = reader.from_encoded(images, identifiers, seeds=None)
            return kept, labels, problems

        batches = image_examples.map_some(examples, decoded, self._params.num_parallel_calls)
        return image_examples.in_memory(batches, self._data.num_examples)

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
