"""Datasets of TensorFlow Datasets (TFDS), which are prepared once."""

import contextlib
import importlib
import pathlib
import pkgutil
import random
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds
from absl import logging

from lingpipe import wording

# A module of this folder whose name ends in '_dataset' registers its own dataset when it is imported.
for _module in pkgutil.iter_modules([str(pathlib.Path(__file__).parent)]):
    if _module.name.endswith('_dataset'):
        importlib.import_module(f'{__package__}.{_module.name}')


def prepared_builder(dataset: str, data_dir: str | None) -> tfds.core.DatasetBuilder:
    """Return the builder of a dataset. Prepare missing data. Raise RuntimeError if they cannot be prepared."""
    builder = find_builder(dataset, data_dir)
    if builder.data_path.exists():
        return builder
    logging.info('Preparing the dataset %r in %s; this happens once.', dataset, builder.data_dir)
    try:
        _prepare(builder)
    except Exception as error:  # TFDS raises what the downloader, the file system or the dataset's own code raises.
        if not builder.data_path.exists():  # otherwise another process prepared it first
            raise RuntimeError(
                f'dataset: {dataset!r} is not in {builder.data_dir_root} and could not be prepared there ({error}). '
                'Set data_dir or the environment variable TFDS_DATA_DIR to a directory that can be written, or that '
                f'holds the prepared data (`tfds build {dataset}` prepares them with a network).') from error
    return find_builder(dataset, data_dir)


def find_builder(dataset: str, data_dir: str | None) -> tfds.core.DatasetBuilder:
    """Return the builder of a dataset without preparing any data."""
    try:
        return tfds.builder(dataset, data_dir=data_dir)
    except tfds.core.DatasetNotFoundError as error:
        names = tfds.list_builders(with_community_datasets=False)  # listing those would use the network
        raise ValueError(
            f'dataset: {dataset!r} is not known to TFDS'
            f'{wording.did_you_mean(str(dataset), names, see_all="tfds.list_builders()")} For a dataset of your own, '
            'import the module that defines its tfds.core.GeneratorBasedBuilder in your params file, or set data_dir '
            'to the directory where it is prepared.') from error


def _prepare(builder):
    # TFDS names its temporary directory by Python's global generator. Processes that all called
    # keras.utils.set_random_seed(0) would write to the same one, so the name comes from fresh entropy.
    state = random.getstate()
    random.seed()
    try:
        builder.download_and_prepare(download_config=tfds.download.DownloadConfig(try_download_gcs=False))
    finally:
        random.setstate(state)


class Split:
    """One split of a TFDS dataset. `num_bytes` is the stored size of the split.

    Raises:
        ValueError: the dataset or the split is unknown.
        RuntimeError: the data cannot be prepared.
    """

    def __init__(self, dataset: str, split: str, data_dir: str | None = None) -> None:
        self.builder = prepared_builder(dataset, data_dir)
        info = _split_info(self.builder, split)
        self.num_examples, self.num_bytes = info.num_examples, info.num_bytes
        self._split = split

    def examples(self, shuffle_seed: tf.Tensor | None = None, decoders: Any = None) -> tf.data.Dataset:
        """Return examples as dictionaries of features. The string 'tfds_id' identifies the example.

        Args:
            shuffle_seed: int64 scalar, the seed for shuffling the files. None: the stored order.
        """
        shuffle_files = shuffle_seed is not None and not self.builder.info.disable_shuffling
        read_config = tfds.ReadConfig(
            shuffle_seed=shuffle_seed, shuffle_reshuffle_each_iteration=False, try_autocache=False, skip_prefetch=True,
            add_tfds_id=True)
        with _without_advice():
            return self.builder.as_dataset(
                split=self._split, shuffle_files=shuffle_files, decoders=decoders, read_config=read_config)


def _split_info(builder, split):
    try:
        info = builder.info.splits[split]
    except (KeyError, ValueError) as error:
        raise ValueError(
            f'split: {split!r} is not a split of the dataset {builder.name!r}'
            f'{wording.did_you_mean(str(split), list(builder.info.splits), see_all="its info.splits")} '
            "A part of a split is written as 'train[:90%]'.") from error
    if info.num_examples == 0:
        raise ValueError(f'split: {split!r} of the dataset {builder.name!r} holds no example. Choose a larger part.')
    return info


class TfdsImages(Split):
    """One split of a TFDS dataset with an 'image' and a 'label'.

    `image_shape` is (height, width, channels). Height and width are None if images differ in size.
    """

    def __init__(self, dataset: str, split: str, data_dir: str | None = None) -> None:
        super().__init__(dataset, split, data_dir)
        image, label = _image_and_label(self.builder)
        self.name, self.folder = self.builder.name, self.builder.data_dir
        self.num_classes, self.image_shape = label.num_classes, image.shape

    def encoded_examples(self, shuffle_seed: tf.Tensor | None = None) -> tf.data.Dataset:
        """Return each example once, as scalars (encoded image, label, identifier)."""
        examples = self.examples(shuffle_seed, {'image': tfds.decode.SkipDecoding()})
        return examples.map(lambda example: (example['image'], example['label'], example['tfds_id']))


def described_images(dataset: str, data_dir: str | None = None) -> tuple[tuple, list[str]]:
    """Return the `TfdsImages.image_shape` and the class names of a dataset. Prepare no data."""
    image, label = _image_and_label(find_builder(dataset, data_dir))
    return image.shape, label.names


@contextlib.contextmanager
def _without_advice():
    """Hide TensorFlow's warnings about how TFDS calls it."""
    logger = tf.get_logger()
    level = logger.level
    logger.setLevel('ERROR')  # a user cannot change the calls
    try:
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
        f'dataset: {builder.name!r} is not an image classification, which needs '
        "'image' (tfds.features.Image of uint8) and 'label' (tfds.features.ClassLabel); as features "
        f'{wording.what_there_is("image", features)}. Choose another dataset.')
