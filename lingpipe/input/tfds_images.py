"""Image classification data of TensorFlow Datasets: found, prepared once, and read as encoded images."""

import random

import numpy as np
import tensorflow_datasets as tfds
from absl import logging

from lingpipe import spelling
from lingpipe.input import digits_dataset  # noqa: F401  (registers 'digits')


class TfdsImages:
    """One split of a TFDS dataset with an 'image' and a 'label'.

    Everything that can be wrong (name, split, missing data) is found here, before any graph is built.

    Args:
        dataset: TFDS name, such as 'cifar10' or 'imagenet_v2/matched-frequency'.
        split: TFDS split, such as 'train' or 'train[:90%]'.
        data_dir: directory of prepared data; None: TFDS's own default ($TFDS_DATA_DIR or ~/tensorflow_datasets).

    Attributes:
        name: name of the dataset, without version or config.
        num_examples: number of examples of the split.
        num_classes: number of classes.
        image_shape: (height, width, channels) of the images; height and width are None if they differ among images.

    Raises:
        ValueError: dataset or split is unknown, or the dataset is no image classification.
        RuntimeError: the data are not there and cannot be prepared.
    """

    def __init__(self, dataset, split, data_dir=None):
        self._builder = _prepared_builder(dataset, data_dir)
        image, label = _image_and_label(self._builder)
        self._split = split
        self.name = self._builder.name
        self.num_examples = _num_examples(self._builder, split)
        self.num_classes = label.num_classes
        self.image_shape = image.shape

    def encoded_examples(self, shuffle_seed=None):
        """Reads the split once.

        Args:
            shuffle_seed: int64 scalar, may be a tensor, that draws the order of the files; None: stored order.

        Returns:
            A `tf.data.Dataset` of (encoded image: scalar string, label: scalar int64); its order is always the same.
        """
        shuffle_files = shuffle_seed is not None and not self._builder.info.disable_shuffling
        examples = self._builder.as_dataset(
            split=self._split,
            shuffle_files=shuffle_files,
            decoders={'image': tfds.decode.SkipDecoding()},
            read_config=tfds.ReadConfig(
                shuffle_seed=shuffle_seed, shuffle_reshuffle_each_iteration=False, try_autocache=False,
                skip_prefetch=True),
        )
        return examples.map(lambda example: (example['image'], example['label']))


def described_image_shape(dataset, data_dir=None):
    """Returns (height, width, channels) of a dataset's images from its description, without preparing any data.

    Args:
        dataset: TFDS name.
        data_dir: directory of prepared data.

    Raises:
        ValueError: the dataset is unknown, or no image classification.
    """
    image, _ = _image_and_label(_find_builder(dataset, data_dir))
    return image.shape


def _prepared_builder(dataset, data_dir):
    builder = _find_builder(dataset, data_dir)
    if builder.data_path.exists():
        return builder
    logging.info('Preparing the dataset %r in %s; this happens once.', dataset, builder.data_dir)
    try:
        _prepare(builder)
    except Exception as error:  # TFDS raises what the downloader, the file system or the dataset's own code raises.
        if not builder.data_path.exists():
            raise RuntimeError(_not_prepared_message(dataset, builder, error)) from error
        logging.info('Another process prepared the dataset %r first; using its copy.', dataset)
    return _find_builder(dataset, data_dir)


def _find_builder(dataset, data_dir):
    try:
        return tfds.builder(dataset, data_dir=data_dir)
    except tfds.core.DatasetNotFoundError as error:
        raise ValueError(_unknown_dataset_message(dataset)) from error


def _prepare(builder):
    # TFDS names its temporary directory by Python's global generator. Processes that all called
    # keras.utils.set_random_seed(0) would write to the same one, so the name is drawn from fresh entropy.
    state = random.getstate()
    random.seed()
    try:
        builder.download_and_prepare(download_config=tfds.download.DownloadConfig(try_download_gcs=False))
    finally:
        random.setstate(state)


def _num_examples(builder, split):
    try:
        num_examples = builder.info.splits[split].num_examples
    except (KeyError, ValueError) as error:
        raise ValueError(
            f'split: {split!r} is not a split of the dataset {builder.name!r}'
            f'{spelling.did_you_mean(str(split), list(builder.info.splits))} '
            "A part of a split is written as 'train[:90%]'.") from error
    if num_examples == 0:
        raise ValueError(f'split: {split!r} of the dataset {builder.name!r} holds no example. Choose a larger part.')
    return num_examples


def _image_and_label(builder):
    features = dict(builder.info.features)
    image = features.get('image')
    label = features.get('label')
    if (isinstance(image, tfds.features.Image) and image.np_dtype == np.uint8
            and isinstance(label, tfds.features.ClassLabel)):
        return image, label
    raise ValueError(
        f"dataset: {builder.name!r} has the features {sorted(features)}, but an image classification needs "
        "'image' (tfds.features.Image of uint8) and 'label' (tfds.features.ClassLabel). Choose another dataset.")


def _unknown_dataset_message(dataset):
    # Community datasets are left out: listing them would go to the network.
    names = tfds.list_builders(with_community_datasets=False)
    return (
        f'dataset: {dataset!r} is not known to TFDS{spelling.did_you_mean(str(dataset), names)} '
        'For a dataset of your own, import the module that defines its tfds.core.GeneratorBasedBuilder in your params '
        'file, or set data_dir to the directory where it is prepared.')


def _not_prepared_message(dataset, builder, error):
    reason = ' '.join(str(error).split()) or type(error).__name__
    message = f'dataset: {dataset!r} is not in {builder.data_dir_root} and could not be prepared there ({reason}). '
    if isinstance(error, ImportError):
        return message + 'Install the missing package with pip.'
    return message + (
        'Set data_dir or the environment variable TFDS_DATA_DIR to a directory that can be written, or that holds the '
        f'prepared data (`tfds build {dataset}` prepares them on a machine with a network).')
