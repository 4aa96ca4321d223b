"""Translation data of TensorFlow Datasets: found, prepared once, and read one pair of sentences at a time."""

import tensorflow_datasets as tfds

from lingpipe import spelling
from lingpipe.input import spoken_numbers_dataset, tfds_builders  # noqa: F401  (the first registers 'spoken_numbers')


class TfdsTranslations:
    """One split of a TFDS dataset of sentences in several languages.

    Args:
        dataset: TFDS name, such as 'spoken_numbers' or 'wmt14_translate/de-en'.
        split: TFDS split, such as 'train' or 'train[:90%]'.
        data_dir: directory of prepared data; None: TFDS's own default ($TFDS_DATA_DIR or ~/tensorflow_datasets).
        source_language: language to translate from; None: the first of the dataset's supervised keys.
        target_language: language to translate into; None: the second of them, or the one that is left.

    Attributes:
        languages: pair of languages, from and into.
        num_examples: number of pairs in the split.
        num_bytes: size of the split as stored, in bytes.

    Raises:
        ValueError: dataset, split or a language is unknown.
        RuntimeError: the data are not there and cannot be prepared.
    """

    def __init__(self, dataset, split, data_dir=None, source_language=None, target_language=None):
        info = tfds_builders.find_builder(dataset, data_dir).info
        features = info.features
        if not isinstance(features, tfds.features.Translation):
            raise ValueError(f'dataset: {dataset!r} has no feature that is a tfds.features.Translation; '
                             f'{spelling.what_there_is("translation", features)}. Choose a dataset of translations.')
        self.languages = _languages(_known_languages(info), source_language, target_language)
        self._builder = tfds_builders.prepared_builder(dataset, data_dir)
        self._split = split
        self.num_examples = tfds_builders.num_examples(self._builder, split)
        self.num_bytes = self._builder.info.splits[split].num_bytes

    def pairs(self, shuffle_seed=None):
        """Reads the split once.

        Args:
            shuffle_seed: int64 scalar, may be a tensor, that draws the order of the files; None: stored order.

        Returns:
            A `tf.data.Dataset` of pairs of scalar strings; its order is always the same.
        """
        shuffle_files = shuffle_seed is not None and not self._builder.info.disable_shuffling
        examples = self._builder.as_dataset(
            split=self._split, shuffle_files=shuffle_files,
            read_config=tfds.ReadConfig(
                shuffle_seed=shuffle_seed, shuffle_reshuffle_each_iteration=False, try_autocache=False, skip_prefetch=True))
        return examples.map(lambda example: tuple(example[language] for language in self.languages))


def _known_languages(info):
    """TFDS sorts languages by name; which is translated into which, only the supervised keys tell."""
    languages = list(info.features.languages)
    keys = [key for key in info.supervised_keys or () if key in languages]
    return keys + [language for language in languages if language not in keys]


def _languages(known, source, target):
    """Returns the pair of languages, of which either may be left open."""
    for field, language in (('source_language', source), ('target_language', target)):
        if language is not None and language not in known:
            raise ValueError(f'{field}: {language!r} is not one of the languages {known} of the dataset. Set it to one.')
    source = source or next(language for language in known if language != target)
    target = target or next(language for language in known if language != source)
    if source == target:
        raise ValueError(f'source_language and target_language are both {source!r}. Set one of them to another of {known}.')
    return source, target
