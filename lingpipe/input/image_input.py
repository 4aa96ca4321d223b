"""Batches of labelled images from any image classification dataset of TFDS."""

import re

import keras
import tensorflow as tf

from lingpipe import hyperparams, wording
from lingpipe.input import base_input, digits, image_augmentation, image_pixels, image_sources, row_order


class ImageInput(base_input.BaseInput):
    """Images of a TFDS dataset, augmented, normalised and batched.

    Order and augmentation depend only on the seed, the epoch and the index in the epoch. The state of the training data
    is one number, the count of examples seen.

    ```
    range of epochs -> images of an epoch, shuffled by (seed, epoch) ------\\
                                                                            zip -> skip to position -> pixels -> augment
                     one augmentation seed per example of (seed, epoch) --/
    ```

    A bad record becomes a black image of weight 0. Other records keep their positions.
    """

    example_name = 'images'

    @classmethod
    def Params(cls) -> hyperparams.InstantiableParams:
        """Return the InstantiableParams of this input. `dataset` may be 'cifar10' or 'imagenet2012', for example."""
        p = super().Params().Set(name='image_input', dataset='digits', batch_size=64)
        p.Define('image_size', 32, 'Height and width of the images that come out, in pixels.')
        p.Define('augmentation', 'none', f'One of {sorted(image_augmentation.AUGMENTATIONS)}.')
        p.Define(
            'shuffle_buffer_size', None,
            'Encoded images in the shuffle buffer, if the pixels are not kept in memory (where all are shuffled); '
            f'None: all of a dataset of up to {image_sources.DEFAULT_SHUFFLE_BUFFER_SIZE:,}, else that many.')
        p.Define('label_offset', 0, 'Added to every label; 1 for ImageNet models that keep class 0 for background.')
        p.Define('max_bad_records', 100,
                 'How many records that cannot be used are named and skipped before the training ends.')
        return p

    @staticmethod
    def InputSpec(params: hyperparams.Params) -> tf.TensorSpec:
        """Return the spec of the images, `[batch_size, height, width, channels]`. The dataset need not be prepared."""
        size = params.image_size
        return tf.TensorSpec([params.batch_size, size, size, _described(params)[0][-1]], tf.float32)

    @staticmethod
    def Preprocessing(params: hyperparams.Params) -> keras.layers.Layer:
        """Return a layer that normalises pixels (0 to 255) in the same way as training."""
        lowest, highest = image_augmentation.pixel_range(
            _dataset_name(params), ImageInput.InputSpec(params).shape[-1])
        return keras.layers.Rescaling(
            ((highest - lowest) / 255).tolist(), lowest.tolist(), dtype='float32', name='normalised_pixels')

    @staticmethod
    def ClassNames(params: hyperparams.Params) -> list[str]:
        """Return the class names, after 'background' if `label_offset` is 1. The dataset need not be prepared."""
        return ['background'] * params.label_offset + _described(params)[1]

    @staticmethod
    @base_input.without_autograph
    def FileBatches(params: hyperparams.Params, files: str) -> tuple[int, tf.data.Dataset]:
        """Read batches of image files. The dataset need not be prepared. See `BaseInput.FileBatches`."""
        cropping = _augmentation(params).cropping
        *stored, num_channels = _described(params)[0]
        size = (params.image_size,) * 2 if cropping or None in stored else stored
        reader = image_pixels.PixelReader((*size, num_channels), cropping, resizes=True)

        def batch(paths):
            pixels, is_good = reader.read(image_pixels.map_rows(tf.io.read_file, (paths,), ''), seeds=None)
            images = image_augmentation.normalize(pixels, _dataset_name(params))
            problems = tf.where(is_good, '', image_pixels.PROBLEM)
            return image_augmentation.keep(images, None, params.image_size), paths, problems

        paths = base_input.paths_of(files)
        batches = tf.data.Dataset.from_tensor_slices(paths).batch(params.batch_size)
        return len(paths), base_input.parallel_map(batches, batch).prefetch(1)

    def __init__(self, params: hyperparams.Params) -> None:
        super().__init__(params)
        self._augmentation = _augmentation(params)
        self._data = _images(params)
        self._bad_records = image_sources.BadRecords(params.max_bad_records, self._data.folder)
        self.num_examples = self._data.num_examples
        self.num_classes = self._data.num_classes + params.label_offset
        self._sources = image_sources.ImageSources(self.params, self._data, self._augmentation.cropping)

    @property
    def bad_records(self) -> dict[str, str]:
        """Dictionary from the name of each skipped record to its problem."""
        return dict(self._bad_records.reasons)

    @base_input.without_autograph
    def training_dataset(self, position: int = 0, share: row_order.Share = row_order.WHOLE) -> tf.data.Dataset:
        """Return endless batches from example number `position` on. See `BaseInput`.

        Data in memory start at any position without delay. Data in files are read from the start of the epoch.

        Returns:
            `tf.data.Dataset` of (images float32 [batch, height, width, channels], labels int32 [batch], weights float32
            [batch]), with static shapes. Bad and unlabelled records have weight 0. Other records have weight 1.
        """
        self._check_position(position)
        p, size = self.params, self.params.batch_size
        if size > self.num_examples:
            raise ValueError(
                f'batch_size: {size} is larger than the {self.num_examples} examples of split {p.split!r} of '
                f'{p.dataset!r}. Choose a batch_size of at most {self.num_examples}.')
        examples = share.of(row_order.epochs(self._examples_of_epoch, self.num_examples, position), size)
        batches = self._sources.batches(examples, share.size(size), training=True)
        return self._finish(self._batches(batches, self._augmentation.train).map(self._weighted))

    @base_input.without_autograph
    def evaluation_dataset(self) -> tf.data.Dataset:
        """Return every example once, in stored order, without augmentation. See `BaseInput`."""
        no_seeds = tf.data.Dataset.from_tensors(tf.zeros([image_augmentation.SEED_LENGTH], tf.int32)).repeat()
        examples = tf.data.Dataset.zip((self._sources.references(), no_seeds))
        batches = self._sources.batches(examples, self.params.batch_size, training=False)
        weighted = self._batches(batches, image_augmentation.keep).map(self._weighted)
        return self._finish(base_input.filled_up(weighted, self.params.batch_size))

    def _examples_of_epoch(self, epoch):
        order_seed, augmentation_seed = (tf.stack([self.params.seed, 2 * epoch + purpose]) for purpose in (0, 1))
        seeds = tf.random.stateless_uniform(
            [self.num_examples, image_augmentation.SEED_LENGTH], augmentation_seed, minval=None, maxval=None,
            dtype=tf.int32)
        references = self._sources.references(order_seed if self.params.shuffle else None)
        return tf.data.Dataset.zip((references, tf.data.Dataset.from_tensor_slices(seeds)))

    def _batches(self, batches, augment):
        """Augment and normalise `batches`, which come from `ImageSources.batches`."""

        def augmented(images, labels, seeds, bad):
            if self._augmentation.cropping:  # images are only mirrored, which is faster on bytes than on floats
                images = augment(images, seeds, self.params.image_size)
                return image_augmentation.normalize(images, self._data.name), labels, bad
            images = image_augmentation.normalize(images, self._data.name)
            return augment(images, seeds, self.params.image_size), labels, bad

        return base_input.parallel_map(batches, augmented)

    def _weighted(self, images, labels, bad):
        """Return the images, labels and weights of a batch, and note the bad records."""
        weights = tf.cast(labels >= 0, tf.float32)  # TFDS writes -1 for an unknown label
        labels = tf.cast(tf.maximum(labels, 0), tf.int32) + self.params.label_offset
        return images, labels, weights * self._bad_records.note(bad)

    def _check_params(self):
        super()._check_params()
        self._check_at_least(image_size=1, label_offset=0, max_bad_records=0)
        if self.params.shuffle_buffer_size is not None:
            self._check_at_least(shuffle_buffer_size=1)


def _augmentation(p):
    known = image_augmentation.AUGMENTATIONS
    if p.augmentation not in list(known):
        raise ValueError(f'augmentation: {p.augmentation!r} is not known'
                         f'{wording.did_you_mean(str(p.augmentation), known)}')
    return known[p.augmentation]


def _dataset_name(p):
    """Return the name of the TFDS dataset without its version and config."""
    return re.split('[:/]', p.dataset)[0]


def _are_own_digits(p):
    return p.dataset == digits.NAME and p.data_dir is None  # with a data_dir, TFDS reads 'digits' from there


def _described(p):
    """Return the image shape and the class names of the dataset."""
    if _are_own_digits(p):
        return digits.IMAGE_SHAPE, [str(number) for number in range(digits.NUM_CLASSES)]
    from lingpipe.input import tfds_builders
    return tfds_builders.described_images(p.dataset, p.data_dir)


def _images(p):
    if _are_own_digits(p):
        return digits.DigitsImages(p.split)
    from lingpipe.input import tfds_builders  # imports TFDS, which takes half a second
    return tfds_builders.TfdsImages(p.dataset, p.split, p.data_dir)
