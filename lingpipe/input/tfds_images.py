"""Image classification data of TensorFlow Datasets: found, prepared once, and read as encoded images."""

import contextlib
import warnings

import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds

from lingpipe import spelling
from lingpipe.input import base_input, tfds_builders


class TfdsImages:
    """One split of a TFDS dataset with an 'image' and a 'label'.

    Everything that can be wrong (name, split, missing data) is found here, before any graph is built.

    Args:
        dataset: TFDS name, such as 'cifar10' or 'imagenet_v2/matched-frequency'.
        split: TFDS split, such as 'train' or 'train[:90%]'.
        data_dir: directory of prepared data; None: TFDS's own default ($TFDS_DATA_DIR or ~/tensorflow_datasets).
        num_hosts: among how many hosts the split is shared out.
        host_index: which of them reads here.

    Attributes:
        name: name of the dataset, without version or config.
        folder: where its files are.
        num_examples: number of examples of the split, or of this host's share of it.
        num_classes: number of classes.
        image_shape: (height, width, channels) of the images; height and width are None if they differ among images.

    Raises:
        ValueError: dataset or split is unknown, or the dataset is no image classification.
        RuntimeError: the data are not there and cannot be prepared.
    """

    def __init__(self, dataset, split, data_dir=None, num_hosts=1, host_index=0):
        self._builder = tfds_builders.prepared_builder(dataset, data_dir)
        image, label = _image_and_label(self._builder)
        self.name, self.folder = self._builder.name, self._builder.data_dir
        self.num_examples = tfds_builders.num_examples(self._builder, split)
        self._split = split
        if num_hosts > 1:
            _check_shares(self.num_examples, num_hosts)
            self._split = tfds.even_splits(split, num_hosts)[host_index]
            self.num_examples = self._builder.info.splits[self._split].num_examples
        self.num_classes = label.num_classes
        self.image_shape = image.shape

    def encoded_examples(self, shuffle_seed=None, num_parallel_calls=None):
        """Reads the split, or this host's share of it, once.

        Args:
            shuffle_seed: int64 scalar, may be a tensor, that draws the order of the files; None: stored order.
            num_parallel_calls: how many files are read, and records parsed, at a time; None: tuned by tf.data.

        Returns:
            A `tf.data.Dataset` of (encoded image: scalar string, label: scalar int64, identifier: scalar string, the name of
            the file and the number of the record in it); its order is always the same.
        """
        shuffle_files = shuffle_seed is not None and not self._builder.info.disable_shuffling
        read_config = tfds.ReadConfig(
            shuffle_seed=shuffle_seed, shuffle_reshuffle_each_iteration=False, try_autocache=False, skip_prefetch=True,
            add_tfds_id=True, num_parallel_calls_for_decode=num_parallel_calls,
            num_parallel_calls_for_interleave_files=base_input.parallel_calls(num_parallel_calls))
        with _without_advice():
            examples = self._builder.as_dataset(
                split=self._split, shuffle_files=shuffle_files, decoders={'image': tfds.decode.SkipDecoding()},
                read_config=read_config)
        return examples.map(lambda example: (example['image'], example['label'], example['tfds_id']))


def described_image_shape(dataset, data_dir=None):
    """Returns (height, width, channels) of a dataset's images from its description, without preparing any data.

    Args:
        dataset: TFDS name.
        data_dir: directory of prepared data.

    Raises:
        ValueError: the dataset is unknown, or no image classification.
    """
    image, _ = _image_and_label(tfds_builders.find_builder(dataset, data_dir))
    return image.shape


@contextlib.contextmanager
def _without_advice():
    """TFDS calls TensorFlow in ways that TensorFlow advises against, about which a user can do nothing."""
    logger = tf.get_logger()
    level = logger.level
    logger.setLevel('ERROR')
    try:
        with warnings.catch_warnings():
            warnings.simplefilter('ignore', UserWarning)
            yield
    finally:
        logger.setLevel(level)


def _image_and_label(builder):
    features = dict(builder.info.features)
    image = features.get('image')
    label = features.get('label')
    if (isinstance(image, tfds.features.Image) and image.np_dtype == np.uint8
            and isinstance(label, tfds.features.ClassLabel)):
        return image, label
    raise ValueError(
        f'dataset: {builder.name!r} is no image classification, which needs '
        "'image' (tfds.features.Image of uint8) and 'label' (tfds.features.ClassLabel); as features "
        f'{spelling.what_there_is("image", features)}. Choose another dataset.')


def _check_shares(num_examples, num_hosts):
    if num_examples < num_hosts:
        raise ValueError(
            f'num_hosts: {num_hosts} hosts cannot share {num_examples} examples. Set it to at most {num_examples}.')
