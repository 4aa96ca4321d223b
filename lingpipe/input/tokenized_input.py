"""The base class of inputs of texts of TFDS, which are tokenized, and kept in memory if they fit."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from lingpipe import hyperparams
from lingpipe.input import base_input, batch_share, row_order, tfds_builders, tokenization

_MEMORY_LIMIT_BYTES = 64 * 2**20


class TokenizedInput(base_input.BaseInput):
    """Rows of tokens of a TFDS dataset; the row at a position of training is a pure function of (seed, position).

    ::

        in memory    numbers of rows from the position on -> rows of the share -> batches
        in files     tokens of all epochs -> skip to the position -> rows of the share -> batches

    A subclass defines `_tokens(example)`, which tokenizes one, and `_batch(*rows)`, which makes a batch. Of tokens in
    memory `_numbers(position)` returns the numbers, and `_row_in_memory(number)` the row. Of tokens that are read,
    `_cut(tokens)` makes the tokens of rows, and `_row(*tokens)` a row.

    Attributes:
        tokenizer: the tokenizer.
    """

    _tokens: Callable[[dict], Any]
    _numbers: Callable[[int], tf.data.Dataset]
    _row_in_memory: Callable[[tf.Tensor], Any]
    _cut: Callable[[tf.data.Dataset], tf.data.Dataset]
    _row: Callable[..., Any]
    _batch: Callable[..., tuple]

    @classmethod
    def Params(cls) -> hyperparams.InstantiableParams:
        """Returns the InstantiableParams of this input."""
        p = super().Params()
        p.Define('tokenizer', tokenization.ByteTokenizer.Params(), 'What makes tokens of a text.')
        p.Define('shuffle_buffer_size', 10_000, 'Texts in the shuffle buffer, if the data are read from files.')
        p.Define('cache', None, 'Whether all tokens stay in memory; None: if the split takes at most '
                 f'{_MEMORY_LIMIT_BYTES >> 20} MiB as stored.')
        return p

    def __init__(self, params: hyperparams.Params) -> None:
        super().__init__(params)
        self.tokenizer = params.tokenizer.Instantiate()
        self.input_spec = self.InputSpec(params)
        self._data = tfds_builders.Split(params.dataset, params.split, params.data_dir)

    @base_input.without_autograph
    def training_dataset(self, position: int = 0, share: batch_share.Share = batch_share.WHOLE) -> tf.data.Dataset:
        """Returns endless batches from row number `position` on.

        Data in memory start at any position at once; data in files are read again from the start of the training run.
        With files, where a row begins is known only when everything before it is tokenized, so every share tokenizes
        all texts. See `BaseInput`.
        """
        self._check_position(position)
        size = self.params.batch_size
        if self._is_kept_in_memory:
            rows = share.of(self._numbers(position), size).map(self._row_in_memory)
        else:
            tokens = tf.data.Dataset.range(row_order.LAST_EPOCH).flat_map(self._tokens_of_epoch)
            rows = share.of(self._cut(tokens).skip(position).map(self._row), size)
        return self._finish(rows.batch(share.size(size), drop_remainder=True).map(self._batch))

    def _tokens_of_epoch(self, epoch: tf.Tensor) -> tf.data.Dataset:
        p = self.params
        order_seed = tf.stack([tf.constant(p.seed, tf.int64), epoch]) if p.shuffle else None
        return row_order.from_files(self._tokenized, order_seed, p.shuffle_buffer_size)

    def _tokenized(self, shuffle_seed: Any = None) -> tf.data.Dataset:
        """Returns the tokens of the split; the seed draws the order of the files."""
        return base_input.parallel_map(self._data.examples(shuffle_seed), self._tokens)

    @property
    def _is_kept_in_memory(self):
        if self.params.cache is not None:
            return self.params.cache
        return self._data.num_bytes <= _MEMORY_LIMIT_BYTES

    def _check_params(self):
        super()._check_params()
        self._check_at_least(shuffle_buffer_size=1)
