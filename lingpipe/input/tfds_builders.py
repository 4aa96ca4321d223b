"""Finding datasets of TensorFlow Datasets, and preparing each once."""

import importlib
import pathlib
import pkgutil
import random

import tensorflow_datasets as tfds
from absl import logging

from lingpipe import spelling

# A module of this folder whose name ends in '_dataset' registers a dataset of its own when it is imported.
for _module in pkgutil.iter_modules([str(pathlib.Path(__file__).parent)]):
    if _module.name.endswith('_dataset'):
        importlib.import_module(f'{__package__}.{_module.name}')


def prepared_builder(dataset, data_dir):
    """Returns the builder of a dataset whose data are there, preparing them if need be.

    Args:
        dataset: TFDS name, such as 'cifar10' or 'imagenet_v2/matched-frequency'.
        data_dir: directory of prepared data; None: TFDS's own default ($TFDS_DATA_DIR or ~/tensorflow_datasets).

    Raises:
        ValueError: the dataset is unknown.
        RuntimeError: the data are not there and cannot be prepared.
    """
    builder = find_builder(dataset, data_dir)
    if builder.data_path.exists():
        return builder
    logging.info('Preparing the dataset %r in %s; this happens once.', dataset, builder.data_dir)
    try:
        _prepare(builder)
    except Exception as error:  # TFDS raises what the downloader, the file system or the dataset's own code raises.
        if not builder.data_path.exists():
            raise RuntimeError(_not_prepared_message(dataset, builder, error)) from error
        logging.info('Another process prepared the dataset %r first; using its copy.', dataset)
    return find_builder(dataset, data_dir)


def find_builder(dataset, data_dir):
    """Returns the builder of a dataset from its description alone; see `prepared_builder`."""
    try:
        return tfds.builder(dataset, data_dir=data_dir)
    except tfds.core.DatasetNotFoundError as error:
        raise ValueError(_unknown_dataset_message(dataset)) from error
    except (ValueError, AssertionError) as error:
        raise ValueError(_unknown_variant_message(dataset, error)) from error


def _prepare(builder):
    # TFDS names its temporary directory by Python's global generator. Processes that all called
    # keras.utils.set_random_seed(0) would write to the same one, so the name is drawn from fresh entropy.
    state = random.getstate()
    random.seed()
    try:
        builder.download_and_prepare(download_config=tfds.download.DownloadConfig(try_download_gcs=False))
    finally:
        random.setstate(state)


def num_examples(builder, split):
    """Returns how many examples a split has.

    Args:
        builder: TFDS builder of prepared data.
        split: TFDS split, such as 'train' or 'train[:90%]'.

    Raises:
        ValueError: there is no such split, or nothing in it.
    """
    try:
        count = builder.info.splits[split].num_examples
    except (KeyError, ValueError) as error:
        raise ValueError(
            f'split: {split!r} is not a split of the dataset {builder.name!r}'
            f'{spelling.did_you_mean(str(split), list(builder.info.splits), see_all="its info.splits")} '
            "A part of a split is written as 'train[:90%]'.") from error
    if count == 0:
        raise ValueError(f'split: {split!r} of the dataset {builder.name!r} holds no example. Choose a larger part.')
    return count


def _unknown_dataset_message(dataset):
    # Community datasets are left out: listing them would go to the network.
    names = tfds.list_builders(with_community_datasets=False)
    return (
        f'dataset: {dataset!r} is not known to TFDS'
        f'{spelling.did_you_mean(str(dataset), names, see_all="tfds.list_builders()")} '
        'For a dataset of your own, import the module that defines its tfds.core.GeneratorBasedBuilder in your params '
        'file, or set data_dir to the directory where it is prepared.')


def _unknown_variant_message(dataset, error):
    """Says what of a dataset that TFDS knows it does not: the configuration or the version."""
    name, _, config = str(dataset).partition(':')[0].partition('/')
    try:
        configs = tfds.builder_cls(name).builder_configs
    except tfds.core.DatasetNotFoundError:  # one of which there are prepared data alone
        configs = None
    if config and configs is not None and config not in configs:
        nearest = spelling.did_you_mean(config, configs, f'{name}/', see_all=f'tfds.builder_cls({name!r}).builder_configs')
        return f'dataset: {name!r} has no configuration {config!r}{nearest}'
    return f'dataset: {dataset!r} cannot be read by TFDS ({" ".join(str(error).split())}). Choose another version or configuration.'


def _not_prepared_message(dataset, builder, error):
    reason = ' '.join(str(error).split()) or type(error).__name__
    message = f'dataset: {dataset!r} is not in {builder.data_dir_root} and could not be prepared there ({reason}). '
    if isinstance(error, ImportError):
        return message + 'Install the missing package with pip.'
    return message + (
        'Set data_dir or the environment variable TFDS_DATA_DIR to a directory that can be written, or that holds the '
        f'prepared data (`tfds build {dataset}` prepares them on a machine with a network).')
