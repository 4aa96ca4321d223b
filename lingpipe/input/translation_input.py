"""Batches of sentences and their translations, from any translation dataset of TFDS."""

import functools

import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds
from absl import logging

from lingpipe import hyperparams, spelling
from lingpipe.input import base_input, batch_share, row_order, tfds_builders, tokenization

_MEMORY_LIMIT_BYTES = 64 * 2**20
_LAST_EPOCH = np.iinfo(np.int64).max // 4


class TfdsTranslations:
    """One split of a TFDS dataset of sentences in several languages.

    Args:
        dataset: TFDS name, such as 'spoken_numbers' or 'wmt14_translate/de-en'.
        split: TFDS split, such as 'train' or 'train[:90%]'.
        data_dir: directory of prepared data; None: TFDS's own default ($TFDS_DATA_DIR or ~/tensorflow_datasets).
        source_language: language to translate from; None: the first of the dataset's supervised keys.
        target_language: language to translate into; None: the second of them, or the remaining one.

    Attributes:
        languages: pair of languages, from and into.
        num_examples: number of pairs in the split.
        num_bytes: size of the split as stored, in bytes.

    Raises:
        ValueError: dataset, split or a language is unknown.
        RuntimeError: the data do not exist and cannot be prepared.
    """

    def __init__(self, dataset: str, split: str, data_dir: str | None = None, source_language: str | None = None,
                 target_language: str | None = None) -> None:
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

    def pairs(self, shuffle_seed: tf.Tensor | None = None) -> tf.data.Dataset:
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
                shuffle_seed=shuffle_seed, shuffle_reshuffle_each_iteration=False, try_autocache=False,
                skip_prefetch=True))
        return examples.map(lambda example: tuple(example[language] for language in self.languages))


def _known_languages(info):
    """Returns the languages; TFDS sorts them by name, and only the supervised keys give the direction."""
    languages = list(info.features.languages)
    keys = [key for key in info.supervised_keys or () if key in languages]
    return keys + [language for language in languages if language not in keys]


def _languages(known, source, target):
    """Returns the pair of languages; either may be None in the arguments."""
    for field, language in (('source_language', source), ('target_language', target)):
        if language is not None and language not in known:
            raise ValueError(
                f'{field}: {language!r} is not one of the languages {known} of the dataset. Set it to one.')
    source = source or next(language for language in known if language != target)
    target = target or next(language for language in known if language != source)
    if source == target:
        raise ValueError(
            f'source_language and target_language are both {source!r}. Set one of them to another of {known}.')
    return source, target


class TranslationInput(base_input.BaseInput):
    """Pairs of sentences of a TFDS dataset, tokenized, padded to fixed lengths and batched.

    ::

        source   w o r d s 0 0 0        padding is the tokenizer's end_id
        target   0 1 2 0 0 0            the token before each label
        labels   1 2 0 0 0 0            ended by end_id
        weights  1 1 1 0 0 0

    Accelerators need static shapes, and each shape is compiled separately, so all batches have one shape. Training
    leaves out pairs that are longer or have an empty side; evaluation keeps all pairs, and truncates longer ones. The
    pair at a position of training is a pure function of (seed, position).

    Attributes:
        input_spec: `{'source', 'target'}`, `tf.TensorSpec` of tokens int32 `[batch_size, length]`.
        example_name: word for an example.
        tokenizer: the tokenizer.
    """

    example_name = 'pairs'

    @classmethod
    def Params(cls) -> hyperparams.InstantiableParams:
        """Returns the InstantiableParams of this input; `dataset` may be 'wmt14_translate/de-en', say."""
        p = super().Params().Set(name='translation_input', dataset='spoken_numbers', batch_size=64)
        p.Define('source_language', None, "Language to translate from; None: the first of the dataset's keys.")
        p.Define('target_language', None, "Language to translate into; None: the second of them.")
        p.Define('tokenizer', tokenization.ByteTokenizer.Params(), 'What makes tokens of both languages.')
        p.Define('source_length', 128, 'Number of tokens that a source is filled up to.')
        p.Define('target_length', 128, 'Number of tokens that a target, with its end, is filled up to.')
        p.Define(
            'shuffle_buffer_size', 10_000, 'Pairs in the shuffle buffer, if the data are read from files.')
        p.Define('cache', None, 'Whether all tokens stay in memory; None: if the split takes at most '
                 f'{_MEMORY_LIMIT_BYTES >> 20} MiB as stored.')
        return p

    @staticmethod
    def InputSpec(params: hyperparams.Params) -> dict[str, tf.TensorSpec]:
        """Returns the nest of `tf.TensorSpec` of a batch of tokens, without preparing any data.

        Args:
            params: `TranslationInput.Params()`.
        """
        return {'source': tf.TensorSpec([params.batch_size, params.source_length], tf.int32),
                'target': tf.TensorSpec([params.batch_size, params.target_length], tf.int32)}

    @staticmethod
    def TargetSpec(params: hyperparams.Params) -> tuple[tf.TensorSpec, tf.TensorSpec]:
        """Returns the pair of the `tf.TensorSpec` of labels and weights `[batch_size, length]`; prepares no data."""
        shape = [params.batch_size, params.target_length]
        return tf.TensorSpec(shape, tf.int32), tf.TensorSpec(shape, tf.float32)

    def __init__(self, params: hyperparams.Params) -> None:
        super().__init__(params)
        self.tokenizer = params.tokenizer.Instantiate()
        self.input_spec = self.InputSpec(params)
        self._data = TfdsTranslations(
            params.dataset, params.split, params.data_dir, params.source_language, params.target_language)

    @base_input.without_autograph
    def training_dataset(self, position: int = 0, share: batch_share.Share = batch_share.WHOLE) -> tf.data.Dataset:
        """Returns endless batches from pair number `position` on.

        Data in memory start at any position at once; data in files are read again from the start of the training run.
        With files, it is known only after tokenizing which pairs fit, so every share tokenizes all of them.

        Args:
            position: number of pairs seen before, over all epochs.
            share: which rows of each batch are made.

        Returns:
            `tf.data.Dataset` of ({'source', 'target'} int32, labels int32, weights float32), each `[batch, length]`.

        Raises:
            ValueError: the position is negative, no pair fits into the lengths, or the shares do not divide the batch.
        """
        self._check_position(position)
        rows_from = self._rows_from_memory if self._is_kept_in_memory else self._rows_from_files
        size = share.size(self.params.batch_size)
        return self._finish(rows_from(position, share).batch(size, drop_remainder=True))

    @base_input.without_autograph
    def evaluation_dataset(self) -> tf.data.Dataset:
        """Returns every pair once, in stored order; the last batch is padded with pairs of weight 0."""
        missing = -self._data.num_examples % self.params.batch_size
        nothing = tuple(tf.zeros_like(row) for row in self._row(tf.zeros([0], tf.int32), tf.zeros([0], tf.int32)))
        rows = self._tokenized().map(self._row).concatenate(tf.data.Dataset.from_tensors(nothing).repeat(missing))
        return self._finish(rows.batch(self.params.batch_size, drop_remainder=True))

    @functools.cached_property
    def _memory(self):
        """All rows that fit into the lengths, as arrays `[pairs, length]`."""
        logging.info('Loading %d pairs of %s into memory.', self._data.num_examples, self.params.dataset)
        batches = list(self._fitting(self._tokenized()).map(self._row).batch(1024).as_numpy_iterator())
        if not batches:
            p = self.params
            raise ValueError(f'source_length: {p.source_length} and target_length: {p.target_length} are too short for '
                             f'every pair of split {p.split!r} of {p.dataset!r}. Make them longer.')
        return tuple(map(np.concatenate, zip(*batches)))

    def _rows_from_memory(self, position, share):
        count = len(self._memory[0])
        with tf.device('CPU:0'):
            memory = tuple(map(tf.constant, self._memory))

        p = self.params
        numbers = share.of(row_order.endless(count, position, p.seed, p.shuffle), p.batch_size)
        return numbers.map(lambda index: tuple(tf.gather(part, index) for part in memory))

    def _rows_from_files(self, position, share):
        rows = tf.data.Dataset.range(_LAST_EPOCH).flat_map(lambda epoch: self._fitting(self._tokens_of_epoch(epoch)))
        return share.of(rows.skip(position).map(self._row), self.params.batch_size)

    def _tokens_of_epoch(self, epoch):
        if not self.params.shuffle:
            return self._tokenized()
        # Dataset.shuffle mixes the graph's seed into its own; see ImageInput.
        tf.compat.v1.get_default_graph().seed = 1
        seed = tf.random.stateless_uniform(
            [], tf.stack([self.params.seed, epoch]), minval=None, maxval=None, dtype=tf.int64)
        return self._tokenized(seed).shuffle(
            self.params.shuffle_buffer_size, seed=seed, reshuffle_each_iteration=False)

    def _tokenized(self, shuffle_seed=None):
        encode = self.tokenizer.encode
        return self._data.pairs(shuffle_seed).map(
            lambda source, target: (encode(source), encode(target)), num_parallel_calls=tf.data.AUTOTUNE,
            deterministic=True)

    def _fitting(self, pairs):
        p = self.params

        def fits(source, target):
            is_full = (tf.size(source) > 0) & (tf.size(target) > 0)
            return is_full & (tf.size(source) <= p.source_length) & (tf.size(target) < p.target_length)

        return pairs.filter(fits)

    def _row(self, source, target):
        """Returns source, target, labels and weights of one pair."""
        p, end = self.params, self.tokenizer.end_id
        target = target[:p.target_length - 1]
        labels = _filled(target, p.target_length, end)
        weights = tf.cast(tf.range(p.target_length) <= tf.size(target), tf.float32)
        return _filled(source, p.source_length, end), tf.concat([[end], labels[:-1]], 0), labels, weights

    def _finish(self, batches):
        return super()._finish(
            batches.map(lambda source, target, *others: ({'source': source, 'target': target}, *others)))

    @property
    def _is_kept_in_memory(self):
        if self.params.cache is not None:
            return self.params.cache
        return self._data.num_bytes <= _MEMORY_LIMIT_BYTES

    def _check_params(self):
        super()._check_params()
        self._check_at_least(source_length=1, target_length=2, shuffle_buffer_size=1)


def _filled(tokens, length, padding):
    tokens = tokens[:length]
    return tf.ensure_shape(tf.pad(tokens, [[0, length - tf.size(tokens)]], constant_values=padding), [length])
