"""Batches of labelled images for training and evaluation, from any image classification dataset of TFDS."""

import functools

import numpy as np
import tensorflow as tf
from absl import logging

from lingpipe import spelling
from lingpipe.input import (
    base_input,
    image_augmentation,
    image_decoding,
    image_examples,
    image_normalization,
    tfds_images,
)

_MEMORY_LIMIT_BYTES = 512 * 2**20
_DEFAULT_SHUFFLE_BUFFER_SIZE = 10_000
_LAST_EPOCH = np.iinfo(np.int64).max // 4


class ImageInput(base_input.BaseInput):
    """Images of a TFDS dataset, augmented, normalised and batched.

    The order of an epoch and every augmentation are pure functions of (seed, epoch, index in the epoch). So the whole
    state of training data is one number, the count of examples seen, and nothing else has to be saved:

    ```
    range of epochs -> references of an epoch, shuffled by (seed, epoch) --\\
                                                                            zip -> skip to position -> pixels -> augment
                       one augmentation seed an example of (seed, epoch) --/
    ```

    Attributes:
        example_name: what an example is called.
        num_examples: number of examples of the split; known without reading data.
        num_classes: number of classes, `label_offset` included.
        input_shape: (batch_size, height, width, channels) of the images.
        input_spec: `tf.TensorSpec` of a batch of images.
    """

    example_name = 'images'

    @classmethod
    def Params(cls):
        """Returns the InstantiableParams of this input; `dataset` may be 'cifar10' or 'imagenet2012', say."""
        p = super().Params().Set(name='image_input', dataset='digits', batch_size=64)
        p.Define('image_size', 32, 'Height and width of the images that come out, in pixels.')
        p.Define('num_channels', None, '1 (gray) or 3 (RGB); None: as in the dataset.')
        p.Define('augmentation', 'none', f'One of {sorted(image_augmentation.AUGMENTATIONS)}.')
        p.Define(
            'shuffle_buffer_size', None,
            'How many encoded images wait for being drawn where the data are read from files (in memory all are '
            f'shuffled); None: all of a dataset of up to {_DEFAULT_SHUFFLE_BUFFER_SIZE:,}, else that many.')
        p.Define(
            'cache', None,
            f'Whether decoded images stay in memory; None: if they take at most {_MEMORY_LIMIT_BYTES >> 20} MiB.')
        p.Define('label_offset', 0, 'Added to every label; 1 for ImageNet models that keep class 0 for background.')
        p.Define('num_threads', None, "Threads of this input's own; None: those of TensorFlow.")
        return p

    @staticmethod
    def InputSpec(params):
        """Returns the `tf.TensorSpec` `[batch_size, height, width, channels]` of the images without preparing any data.

        Args:
            params: `ImageInput.Params()`.
        """
        channels = params.num_channels or tfds_images.described_image_shape(params.dataset, params.data_dir)[-1]
        return tf.TensorSpec([params.batch_size, params.image_size, params.image_size, channels], tf.float32)

    @staticmethod
    def TargetSpec(params):
        """Returns the pair of the `tf.TensorSpec` of labels and weights `[batch_size]`, without preparing any data."""
        return tf.TensorSpec([params.batch_size], tf.int32), tf.TensorSpec([params.batch_size], tf.float32)

    def __init__(self, params):
        super().__init__(params)
        self._augmentation = image_augmentation.AUGMENTATIONS[params.augmentation]
        self._data = tfds_images.TfdsImages(params.dataset, params.split, params.data_dir)
        self.num_examples = self._data.num_examples
        self.num_classes = self._data.num_classes + params.label_offset
        num_channels = params.num_channels or self._data.image_shape[-1]
        self.input_shape = (params.batch_size, params.image_size, params.image_size, num_channels)
        self.input_spec = tf.TensorSpec(self.input_shape, tf.float32)

    @base_input.without_autograph
    def training_dataset(self, position=0):
        """Returns batches without end, from example number `position` on.

        What comes from there is what an uninterrupted run gets from there, bit for bit, whatever the batch size was.
        Batches go on across the ends of epochs. Data in memory start anywhere at once; data in files are read, but
        not decoded, from the start of the epoch.

        Args:
            position: number of examples seen before, over all epochs.

        Returns:
            `tf.data.Dataset` of (images float32 [batch, height, width, channels], labels int32 [batch], weights float32
            [batch], all one), with static shapes.

        Raises:
            ValueError: the position is negative, or the batch larger than the dataset.
        """
        self._check_training(position)
        source = self._source(training=True)
        first_epoch, first_index = divmod(position, self.num_examples)

        def examples_of_epoch(epoch):
            num_skipped = tf.where(epoch == first_epoch, tf.constant(first_index, tf.int64), tf.constant(0, tf.int64))
            return self._examples_of_epoch(source, epoch).skip(num_skipped)

        examples = tf.data.Dataset.range(first_epoch, _LAST_EPOCH).flat_map(examples_of_epoch)
        batches = source.batch(examples, self.params.batch_size, drop_remainder=True)
        return self._finish(batches.map(self._training_batch, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True))

    @base_input.without_autograph
    def evaluation_dataset(self):
        """Returns every example once, in stored order, without augmentation.

        Returns:
            `tf.data.Dataset` of (images, labels, weights) as in training; the last batch is filled up with examples of
            weight 0, because an accelerator needs static shapes.
        """
        source = self._source(training=False)
        no_seeds = tf.data.Dataset.from_tensors(tf.zeros([image_augmentation.SEED_LENGTH], tf.int32)).repeat()
        examples = tf.data.Dataset.zip((source.references(), no_seeds))
        batches = source.batch(examples, self.params.batch_size, drop_remainder=False)
        return self._finish(batches.map(self._evaluation_batch, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True))

    def _examples_of_epoch(self, source, epoch):
        # Dataset.shuffle mixes the graph's seed into its own. Fixing it here, in the graph of this one function, keeps
        # the order independent of tf.random.set_seed.
        tf.compat.v1.get_default_graph().seed = 1
        order_seed, augmentation_seed = (tf.stack([self.params.seed, 2 * epoch + purpose]) for purpose in (0, 1))
        seeds = tf.random.stateless_uniform(
            [self.num_examples, image_augmentation.SEED_LENGTH], augmentation_seed, minval=None, maxval=None,
            dtype=tf.int32)
        references = source.references(order_seed if self.params.shuffle else None)
        return tf.data.Dataset.zip((references, tf.data.Dataset.from_tensor_slices(seeds)))

    def _training_batch(self, images, labels, seeds):
        images = image_normalization.normalize(images, self._data.name)
        images = self._augmentation.train(images, seeds, self.params.image_size)
        return tf.ensure_shape(images, self.input_shape), self._offset(labels), tf.ones(self.params.batch_size)

    def _evaluation_batch(self, images, labels, seeds):
        del seeds
        images = image_normalization.normalize(images, self._data.name)
        images = self._augmentation.evaluate(images, self.params.image_size)
        num_padded = self.params.batch_size - tf.size(labels)
        images, labels, weights = (
            tf.pad(part, [[0, num_padded]] + [[0, 0]] * (part.shape.rank - 1))
            for part in (images, self._offset(labels), tf.ones_like(labels, tf.float32)))
        batch_shape = self.input_shape[:1]
        return (tf.ensure_shape(images, self.input_shape), tf.ensure_shape(labels, batch_shape),
                tf.ensure_shape(weights, batch_shape))

    def _offset(self, labels):
        return tf.cast(labels, tf.int32) + self.params.label_offset

    def _finish(self, batches):
        options = tf.data.Options()
        if self.params.num_threads:
            options.threading.private_threadpool_size = self.params.num_threads
        return super()._finish(batches).with_options(options)

    def _check_training(self, position):
        self._check_position(position)
        p = self.params
        if p.batch_size > self.num_examples:
            raise ValueError(
                f'batch_size: {p.batch_size} is larger than the {self.num_examples} examples of split {p.split!r} of '
                f'{p.dataset!r}. Choose a batch_size of at most {self.num_examples}.')

    def _source(self, training):
        if self._is_kept_in_memory:
            return self._memory_examples
        buffer_size = self.params.shuffle_buffer_size or min(self.num_examples, _DEFAULT_SHUFFLE_BUFFER_SIZE)
        decode = functools.partial(self._decode, training=training)
        return image_examples.StreamedExamples(self._data.encoded_examples, decode, buffer_size)

    @functools.cached_property
    def _memory_examples(self):
        logging.info('Loading %d images of %s into memory.', self.num_examples, self.params.dataset)
        decode = functools.partial(self._decode, training=False)
        return image_examples.MemoryExamples(self._data.encoded_examples(), self.num_examples, decode)

    @property
    def _is_kept_in_memory(self):
        if self.params.cache is not None or self._augmentation.crops_when_decoding:
            return bool(self.params.cache)
        height, width = self._decoded_size
        return self.num_examples * height * width * self.input_shape[-1] <= _MEMORY_LIMIT_BYTES

    @property
    def _decoded_size(self):
        """Height and width of the images between decoding and augmentation."""
        stored = self._data.image_shape[:2]
        if self._augmentation.crops_when_decoding or None in stored:
            return self.input_shape[1:3]
        return stored

    def _decode(self, encoded, seed, training):
        num_channels, image_size = self.input_shape[-1], self.params.image_size
        if self._augmentation.crops_when_decoding and training:
            image = image_decoding.decode_random_crop(encoded, seed[:2], image_size, num_channels)
        elif self._augmentation.crops_when_decoding:
            image = image_decoding.decode_central_crop(encoded, image_size, num_channels)
        elif None in self._data.image_shape[:2]:
            image = image_decoding.decode_resized_image(encoded, image_size, num_channels)
        else:
            image = image_decoding.decode_image(encoded, num_channels)
        return tf.ensure_shape(image, [*self._decoded_size, num_channels])

    def _check_params(self):
        super()._check_params()
        p = self.params
        if p.augmentation not in image_augmentation.AUGMENTATIONS:
            raise ValueError(
                f'augmentation: {p.augmentation!r} is not known'
                f'{spelling.did_you_mean(str(p.augmentation), image_augmentation.AUGMENTATIONS)}')
        if p.num_channels not in (None, 1, 3):
            raise ValueError(
                f'num_channels: {p.num_channels!r} is not allowed. Choose 1 (gray), 3 (RGB), or None (as in the dataset).')
        self._check_at_least(image_size=1, label_offset=0)
        self._check_at_least(**{field: 1 for field in ('shuffle_buffer_size', 'num_threads') if p.Get(field) is not None})
        if p.cache and image_augmentation.AUGMENTATIONS[p.augmentation].crops_when_decoding:
            raise ValueError(
                f'cache: True keeps whole decoded images in memory, but {p.augmentation!r} decodes only the part that it '
                'crops. Set cache to None, or choose another augmentation.')
