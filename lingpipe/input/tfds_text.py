"""Text data of TensorFlow Datasets: found, prepared once, and read one document at a time."""

import tensorflow_datasets as tfds

from lingpipe import spelling
from lingpipe.input import pydoc_topics_dataset, tfds_builders  # noqa: F401  (the first registers 'pydoc_topics')


class TfdsText:
    """One split of a TFDS dataset that has texts.

    Args:
        dataset: TFDS name, such as 'pydoc_topics' or 'lm1b'.
        split: TFDS split, such as 'train' or 'train[:90%]'.
        data_dir: directory of prepared data; None: TFDS's own default ($TFDS_DATA_DIR or ~/tensorflow_datasets).
        feature: name of the feature that is read; None: 'text', or the only text feature there is.

    Attributes:
        num_documents: number of texts in the split.
        num_bytes: size of the split as stored, in bytes.

    Raises:
        ValueError: dataset, split or feature is unknown.
        RuntimeError: the data are not there and cannot be prepared.
    """

    def __init__(self, dataset, split, data_dir=None, feature=None):
        self._feature = _text_feature(tfds_builders.find_builder(dataset, data_dir), feature)
        self._builder = tfds_builders.prepared_builder(dataset, data_dir)
        self._split = split
        self.num_documents = tfds_builders.num_examples(self._builder, split)
        self.num_bytes = self._builder.info.splits[split].num_bytes

    def texts(self, shuffle_seed=None):
        """Reads the split once.

        Args:
            shuffle_seed: int64 scalar, may be a tensor, that draws the order of the files; None: stored order.

        Returns:
            A `tf.data.Dataset` of scalar strings; its order is always the same.
        """
        shuffle_files = shuffle_seed is not None and not self._builder.info.disable_shuffling
        examples = self._builder.as_dataset(
            split=self._split, shuffle_files=shuffle_files,
            read_config=tfds.ReadConfig(
                shuffle_seed=shuffle_seed, shuffle_reshuffle_each_iteration=False, try_autocache=False,
                skip_prefetch=True))
        return examples.map(lambda example: example[self._feature])


def _text_feature(builder, wanted):
    """Returns the name of the feature to read."""
    names = sorted(name for name, feature in builder.info.features.items() if isinstance(feature, tfds.features.Text))
    if wanted is None and (len(names) == 1 or 'text' in names):
        return names[0] if len(names) == 1 else 'text'
    if wanted in names:
        return wanted
    if not names:
        raise ValueError(
            f'dataset: {builder.name!r} has no feature that is a tfds.features.Text; '
            f'{spelling.what_there_is("text", builder.info.features)}. Choose a dataset of texts.')
    raise ValueError(f'text_feature: {wanted!r} is none of the texts of the dataset {builder.name!r}; '
                     f'{spelling.what_there_is(str(wanted), names)}. Set it to one.')
