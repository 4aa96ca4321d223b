"""Batches of token sequences for language models, from any text dataset of TFDS."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds
from absl import logging

from lingpipe import hyperparams, wording
from lingpipe.input import base_input, row_order, tfds_builders, tokenization

MEMORY_LIMIT_BYTES = 64 * 2**20


def text_feature(dataset: str, data_dir: str | None, wanted: str | None) -> str:
    """Return the name of a dataset's text feature. This prepares no data."""
    features = tfds_builders.find_builder(dataset, data_dir).info.features
    names = sorted(name for name, feature in features.items() if isinstance(feature, tfds.features.Text))
    chosen = wanted or (names[0] if len(names) == 1 else 'text')
    if chosen not in names:
        raise ValueError(f'text_feature: {chosen!r} is not a tfds.features.Text of the dataset {dataset!r}; '
                         f'{wording.what_there_is(chosen, names or features)}. Set it to one, or choose a dataset of '
                         'texts.')
    return chosen


class TokenizedInput(base_input.MemoryInput):
    """Rows of tokens from a TFDS dataset. In training, row number n is the same in all runs with the same seed.

    ::

        in memory    row numbers, from `position` on -> numbers in the share -> batches
        in files     tokens of all epochs -> rows, from `position` on -> rows in the share -> batches

    A subclass defines `_tokens`, `_cut` and `_row`. It also defines `_batch`, which makes a batch from rows.
    """

    _tokens: Callable[[dict], Any]  # tokenizes an example
    _cut: Callable[[tf.data.Dataset], tf.data.Dataset]  # turns tokenized examples into one element per row
    _row: Callable[..., Any]  # turns such an element into a row

    @classmethod
    def Params(cls) -> hyperparams.InstantiableParams:
        p = super().Params()
        p.Define('tokenizer', tokenization.ByteTokenizer.Params(), 'Tokenizer.')
        p.Define('shuffle_buffer_size', 10_000, 'Texts in the shuffle buffer, if the data are read from files, because '
                 f'the split takes more than {MEMORY_LIMIT_BYTES >> 20} MiB as stored.')
        return p

    def __init__(self, params: hyperparams.Params) -> None:
        super().__init__(params)
        self.tokenizer = params.tokenizer.Instantiate()
        self._data = tfds_builders.Split(params.dataset, params.split, params.data_dir)

    @base_input.without_autograph
    def training_dataset(self, position: int = 0, share: row_order.Share = row_order.WHOLE) -> tf.data.Dataset:
        """Return endless batches from row number `position` on. See `BaseInput`.

        If data are read from files, all rows before `position` are read and skipped. Data in memory avoid this delay.
        """
        if self._data.num_bytes <= MEMORY_LIMIT_BYTES:
            return super().training_dataset(position, share)
        self._check_position(position)
        size = self.params.batch_size
        # Every share reads all texts, because the place of a row depends on all earlier tokens.
        tokens = tf.data.Dataset.range(row_order.LAST_EPOCH).flat_map(self._tokens_of_epoch)
        rows = share.of(self._cut(tokens).skip(position).map(self._row), size)
        return self._finish(rows.batch(share.size(size), drop_remainder=True).map(self._batch))

    def _tokens_of_epoch(self, epoch: tf.Tensor) -> tf.data.Dataset:
        p = self.params
        order_seed = tf.stack([tf.constant(p.seed, tf.int64), epoch]) if p.shuffle else None
        return row_order.from_files(self._tokenized, order_seed, p.shuffle_buffer_size)

    def _tokenized(self, shuffle_seed: Any = None) -> tf.data.Dataset:
        """Return the tokens of each example in the split."""
        return base_input.parallel_map(self._data.examples(shuffle_seed), self._tokens)

    def _check_params(self):
        super()._check_params()
        self._check_at_least(shuffle_buffer_size=1)


class TextInput(TokenizedInput):
    """Texts of a TFDS dataset, tokenized, packed into sequences of one length and batched.

    Documents follow each other without padding. Start tokens come before each document, and an end token comes after.
    Documents in memory form one ring of tokens. Every epoch cuts the ring at different places::

        epoch 0   |----3----|----0----|----2----|----1----|--    (seed, epoch) draws the place of the first cut,
        epoch 1   --|----1----|----2----|----0----|----3----|    and the order of the sequences (the numbers)

    Documents in files follow each other in shuffled order. They are cut wherever a sequence is full.
    """

    example_name = 'sequences'

    @classmethod
    def Params(cls) -> hyperparams.InstantiableParams:
        """Return the InstantiableParams of this input. `dataset` may be 'lm1b', for example."""
        p = super().Params().Set(name='text_input', dataset='pydoc_topics', batch_size=16)
        p.Define('text_feature', None, "Feature that is read; None: 'text', or the only text of the dataset.")
        p.Define('sequence_length', 256, 'Number of tokens in a sequence.')
        p.Define('has_padding_mask', False, "Whether inputs are a dictionary of 'token_ids' and a 'padding_mask' that "
                                            'hides none, as models of KerasHub take them.')
        p.Define('evaluation_context', 0,
                 'In evaluation, number of tokens that each sequence repeats as context from the previous sequence. '
                 'Repeated tokens have weight 0. More context takes more time, and predictions see more text.')
        return p

    @staticmethod
    def InputSpec(params: hyperparams.Params) -> tf.TensorSpec:
        """Return the spec of the tokens, or with `has_padding_mask` a dictionary of specs. No data are prepared."""
        tokens = tf.TensorSpec([params.batch_size, params.sequence_length], tf.int32)
        if not params.has_padding_mask:
            return tokens
        return {'token_ids': tokens, 'padding_mask': tf.TensorSpec(tokens.shape, tf.bool)}

    @staticmethod
    def TargetSpec(params: hyperparams.Params) -> tuple[tf.TensorSpec, ...]:
        """Return the specs of labels, weights and byte counts, each `[batch_size, length]`. No data are prepared."""
        shape = [params.batch_size, params.sequence_length]
        return tuple(tf.TensorSpec(shape, dtype) for dtype in (tf.int32, tf.float32, tf.float32))

    def __init__(self, params: hyperparams.Params) -> None:
        self._feature = text_feature(params.dataset, params.data_dir, params.text_feature)
        super().__init__(params)

    @base_input.without_autograph
    def evaluation_dataset(self) -> tf.data.Dataset:
        """Return batches of all tokens in stored order. Padding, and tokens repeated as context, have weight 0."""
        p = self.params
        sequences = evaluation_sequences(
            self.tokens, p.sequence_length, p.evaluation_context, self.tokenizer.end_id)
        batches = tf.data.Dataset.from_tensor_slices(sequences).batch(p.batch_size)
        return self._finish(base_input.filled_up(batches, p.batch_size).map(self._batch))

    @functools.cached_property
    def tokens(self) -> np.ndarray:
        """All tokens of the split in stored order, int32 `[n]`. Every document ends with an end token."""
        logging.info('Loading %d texts of %s into memory.', self._data.num_examples, self.params.dataset)
        return np.concatenate(list(self._tokenized().as_numpy_iterator()))

    @functools.cached_property
    def _ring(self):
        p, count = self.params, len(self.tokens)
        if count < p.sequence_length:
            raise ValueError(
                f'sequence_length: {p.sequence_length} is more than the {count} tokens of split {p.split!r} of '
                f'{p.dataset!r}. Choose a sequence_length of at most {count}.')
        with tf.device('CPU:0'):
            return tf.constant(self.tokens)

    def _tokens(self, example):
        end_id = self.tokenizer.end_id
        start = tf.constant([token for token in self.tokenizer.start_ids if token != end_id], tf.int32)
        return tf.concat([start, self.tokenizer.encode(example[self._feature]), [end_id]], 0)

    def _numbers(self, position):
        """Return a dataset of places in the ring where sequences start, without the first `position` sequences."""
        return row_order.epochs(self._starts, len(self._ring) // self.params.sequence_length, position)

    def _starts(self, epoch):
        p, count = self.params, len(self._ring)
        numbers = tf.range(count // p.sequence_length, dtype=tf.int64)
        place = tf.constant(0, tf.int64)
        if p.shuffle:
            place_seed, order_seed = (tf.stack([p.seed, 2 * epoch + purpose]) for purpose in (0, 1))
            place = tf.random.stateless_uniform([], place_seed, maxval=count, dtype=tf.int64)
            numbers = tf.random.experimental.stateless_shuffle(numbers, order_seed)
        return tf.data.Dataset.from_tensor_slices(place + p.sequence_length * numbers)

    def _batch_of(self, starts):
        places = starts[:, tf.newaxis] + tf.range(self.params.sequence_length + 1, dtype=tf.int64)
        return self._batch(tf.gather(self._ring, places % len(self._ring)))

    def _cut(self, tokens):
        return tokens.rebatch(self.params.sequence_length)

    def _row(self, tokens):
        return tf.concat([[self.tokenizer.end_id], tokens], 0)

    def _batch(self, rows, weights=None):
        labels = rows[:, 1:]
        shape = [rows.shape[0], self.params.sequence_length]
        weights = tf.ones(shape) if weights is None else weights
        parts = rows[:, :-1], labels, weights, self.tokenizer.num_bytes(labels)
        tokens, *targets = [tf.ensure_shape(part, shape) for part in parts]
        if not self.params.has_padding_mask:
            return tokens, *targets
        return {'token_ids': tokens, 'padding_mask': tf.ones(shape, tf.bool)}, *targets

    def _check_params(self):
        super()._check_params()
        self._check_at_least(sequence_length=1, evaluation_context=0)
        p = self.params
        if p.evaluation_context >= p.sequence_length:
            raise ValueError(
                f'evaluation_context: {p.evaluation_context} leaves nothing to predict of a sequence_length of '
                f'{p.sequence_length}. Set it to half of that, for instance, or to 0.')


def evaluation_sequences(tokens: np.ndarray, length: int, context: int, end_id: int) -> tuple[np.ndarray, np.ndarray]:
    """Cut a text into sequences in which every token is predicted once.

        |--------|               length 8, context 3
             |ccc-----|          -: token with weight 1
                  |ccc-----|     c: context, repeated with weight 0

    A prediction sees at least `context` earlier tokens, except near the start of the text. The token `end_id` comes
    before the text, and pads the last sequence.

    Returns:
        Rows, int32 `[count, length + 1]`, and weights, float32 `[count, length]`. A row's first token has no weight.
    """
    advance = length - context
    count = 1 + max(0, -(-(len(tokens) - length) // advance))
    starts: np.ndarray = advance * np.arange(count)
    padded = np.full(1 + starts[-1] + length, end_id, np.int32)
    padded[1:1 + len(tokens)] = tokens
    places = starts[:, np.newaxis] + np.arange(length + 1)
    weights = (places[:, :-1] < len(tokens)) & ((np.arange(length) >= context) | (starts == 0)[:, np.newaxis])
    return padded[places], weights.astype(np.float32)
