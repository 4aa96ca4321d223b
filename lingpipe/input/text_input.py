"""Batches of token sequences for language models, from any text dataset of TFDS."""

import functools

import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds
from absl import logging

from lingpipe import hyperparams, spelling
from lingpipe.input import base_input, batch_share, tfds_builders, tokenization

_MEMORY_LIMIT_BYTES = 64 * 2**20
_DEFAULT_SHUFFLE_BUFFER_SIZE = 10_000


class TfdsText:
    """One split of a TFDS dataset that has texts.

    Args:
        dataset: TFDS name, such as 'pydoc_topics' or 'lm1b'.
        split: TFDS split, such as 'train' or 'train[:90%]'.
        data_dir: directory of prepared data; None: TFDS's own default ($TFDS_DATA_DIR or ~/tensorflow_datasets).
        feature: name of the feature that is read; None: 'text', or the only text feature.

    Attributes:
        num_documents: number of texts in the split.
        num_bytes: size of the split as stored, in bytes.

    Raises:
        ValueError: dataset, split or feature is unknown.
        RuntimeError: the data do not exist and cannot be prepared.
    """

    def __init__(self, dataset: str, split: str, data_dir: str | None = None, feature: str | None = None) -> None:
        self._feature = _text_feature(tfds_builders.find_builder(dataset, data_dir), feature)
        self._builder = tfds_builders.prepared_builder(dataset, data_dir)
        self._split = split
        self.num_documents = tfds_builders.num_examples(self._builder, split)
        self.num_bytes = self._builder.info.splits[split].num_bytes

    def texts(self, shuffle_seed: tf.Tensor | None = None) -> tf.data.Dataset:
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


class TextInput(base_input.BaseInput):
    """Texts of a TFDS dataset, tokenized, packed into sequences of one length and batched.

    Documents follow each other, each ended by the tokenizer's `end_id`, so that no position is wasted. If texts begin
    with a start token, each document has it too. The sequence at a position of training is a pure function of (seed,
    position), so only the count of sequences has to be saved.

    Attributes:
        input_spec: `tf.TensorSpec` of a batch of tokens int32 `[batch_size, sequence_length]`.
        example_name: word for an example.
        tokenizer: the tokenizer.
    """

    example_name = 'sequences'

    @classmethod
    def Params(cls) -> hyperparams.InstantiableParams:
        """Returns the InstantiableParams of this input; `dataset` may be 'lm1b', say."""
        p = super().Params().Set(name='text_input', dataset='pydoc_topics', batch_size=16)
        p.Define('text_feature', None, "Feature that is read; None: 'text', or the only text of the dataset.")
        p.Define('tokenizer', tokenization.ByteTokenizer.Params(), 'What makes tokens of a text.')
        p.Define('sequence_length', 256, 'Number of tokens in a sequence.')
        p.Define('has_padding_mask', False, "Whether inputs are a dictionary of 'token_ids' and a 'padding_mask' that "
                                            'hides none, as models of KerasHub take them.')
        p.Define('evaluation_context', 0,
                 'In evaluation, tokens of each sequence that are shown but were counted before; '
                 'more cost time, and spare tokens a prediction from next to nothing.')
        p.Define('shuffle_buffer_size', _DEFAULT_SHUFFLE_BUFFER_SIZE,
                 'Documents in the shuffle buffer, if the data are read from files.')
        p.Define('cache', None, 'Whether all tokens stay in memory; None: if the split takes at most '
                 f'{_MEMORY_LIMIT_BYTES >> 20} MiB as stored.')
        return p

    @staticmethod
    def InputSpec(params: hyperparams.Params) -> tf.TensorSpec:
        """Returns the `tf.TensorSpec` of a batch of tokens, or the dictionary with that of its mask; prepares no data.

        Args:
            params: `TextInput.Params()`.
        """
        tokens = tf.TensorSpec([params.batch_size, params.sequence_length], tf.int32)
        if not params.has_padding_mask:
            return tokens
        return {'token_ids': tokens, 'padding_mask': tf.TensorSpec(tokens.shape, tf.bool)}

    @staticmethod
    def TargetSpec(params: hyperparams.Params) -> tuple[tf.TensorSpec, ...]:
        """Returns the `tf.TensorSpec` of labels, weights and byte counts `[batch_size, length]`; prepares no data."""
        shape = [params.batch_size, params.sequence_length]
        return tuple(tf.TensorSpec(shape, dtype) for dtype in (tf.int32, tf.float32, tf.float32))

    def __init__(self, params: hyperparams.Params) -> None:
        super().__init__(params)
        self.tokenizer = params.tokenizer.Instantiate()
        self.input_spec = self.InputSpec(params)
        self._data = TfdsText(params.dataset, params.split, params.data_dir, params.text_feature)

    @base_input.without_autograph
    def training_dataset(self, position: int = 0, share: batch_share.Share = batch_share.WHOLE) -> tf.data.Dataset:
        """Returns endless batches from sequence number `position` on.

        They equal those of an uninterrupted run from there on, for every earlier batch size. With files, the start of a
        sequence is known only when everything before it is tokenized, so every share tokenizes all texts.

        Args:
            position: number of sequences seen before, over all epochs.
            share: which rows of each batch are made.

        Returns:
            `tf.data.Dataset` of (tokens, labels, weights, numbers of bytes), each `[batch, length]`: int32, int32,
            float32 (all one) and float32.

        Raises:
            ValueError: the position is negative, the split is too small for a batch, or the shares do not divide it.
        """
        self._check_position(position)
        p = self.params
        size = share.size(p.batch_size)
        batches = self._source().sequences(position, share, p.batch_size).batch(size, drop_remainder=True)
        weights = tf.ones([size, p.sequence_length])
        return self._finish(batches.map(lambda rows: self._examples(rows, weights)))

    @base_input.without_autograph
    def evaluation_dataset(self) -> tf.data.Dataset:
        """Returns every token once, in stored order; see `tokenization.evaluation_sequences`.

        Returns:
            `tf.data.Dataset` of (tokens, labels, weights, numbers of bytes) as in training; tokens that do not count,
            because they are padding or were counted before, have weight 0.
        """
        p = self.params
        rows, weights = tokenization.evaluation_sequences(
            self.tokens, p.sequence_length, p.evaluation_context, self.tokenizer.end_id)
        num_padded = -len(rows) % p.batch_size
        rows, weights = (np.pad(part, [[0, num_padded], [0, 0]]) for part in (rows, weights))
        batches = tf.data.Dataset.from_tensor_slices((rows, weights)).batch(p.batch_size, drop_remainder=True)
        return self._finish(batches.map(self._examples))

    @functools.cached_property
    def tokens(self) -> np.ndarray:
        """All tokens of the split in stored order, an int32 array `[n]` in which every document has its end."""
        logging.info('Loading %d texts of %s into memory.', self._data.num_documents, self.params.dataset)
        return np.concatenate(list(self._documents().as_numpy_iterator()))

    def _examples(self, rows, weights):
        shape, labels = weights.shape, rows[:, 1:]
        parts = rows[:, :-1], labels, weights, self.tokenizer.num_bytes(labels)
        tokens, *targets = [tf.ensure_shape(part, shape) for part in parts]
        if not self.params.has_padding_mask:
            return tokens, *targets
        return {'token_ids': tokens, 'padding_mask': tf.ones(shape, tf.bool)}, *targets

    def _documents(self, shuffle_seed=None):
        end_id = self.tokenizer.end_id
        start = tf.constant([token for token in self.tokenizer.start_ids if token != end_id], tf.int32)
        return self._data.texts(shuffle_seed).map(
            lambda text: tf.concat([start, self.tokenizer.encode(text), [end_id]], 0),
            num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)

    def _source(self):
        p = self.params
        if not self._is_kept_in_memory:
            buffer_size = p.shuffle_buffer_size if p.shuffle else 0
            return tokenization.StreamedTokens(
                self._documents, p.sequence_length, self.tokenizer.end_id, p.seed, buffer_size)
        if len(self.tokens) < p.sequence_length:
            raise ValueError(
                f'sequence_length: {p.sequence_length} is more than the {len(self.tokens)} tokens of split {p.split!r} '
                f'of {p.dataset!r}. Choose a sequence_length of at most {len(self.tokens)}.')
        return tokenization.MemoryTokens(self.tokens, p.sequence_length, p.seed, p.shuffle)

    @property
    def _is_kept_in_memory(self):
        if self.params.cache is not None:
            return self.params.cache
        return self._data.num_bytes <= _MEMORY_LIMIT_BYTES

    def _check_params(self):
        super()._check_params()
        self._check_at_least(sequence_length=1, shuffle_buffer_size=1, evaluation_context=0)
        p = self.params
        if p.evaluation_context >= p.sequence_length:
            raise ValueError(
                f'evaluation_context: {p.evaluation_context} leaves nothing to predict of a sequence_length of '
                f'{p.sequence_length}. Set it to half of that, for instance, or to 0.')
