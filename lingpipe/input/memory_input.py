"""The base class of inputs whose rows are all in memory."""

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from lingpipe.input import base_input, batch_share, row_order

_LAST_POSITION = np.iinfo(np.int64).max


class MemoryInput(base_input.BaseInput):
    """Rows in memory; the row at a position of training is a pure function of (seed, position).

    A subclass defines `_columns`, the tensors `[n, ...]` of all rows, and `_batch(columns, is_row, visits)`, which
    makes a batch from the columns of some rows. Visits are their positions over all epochs, negative in evaluation.

    Attributes:
        num_examples: number of rows in an epoch.
    """

    _columns: tuple[tf.Tensor, ...] = ()
    _batch: Callable[..., tuple]

    @base_input.without_autograph
    def training_dataset(self, position: int = 0, share: batch_share.Share = batch_share.WHOLE) -> tf.data.Dataset:
        """Returns endless batches from row number `position` on, without delay; see `BaseInput`."""
        self._check_position(position)
        p = self.params
        numbers = row_order.endless(self.num_examples, position, p.seed, p.shuffle)
        rows = share.of(tf.data.Dataset.zip((numbers, tf.data.Dataset.range(position, _LAST_POSITION))), p.batch_size)
        return self._batches(rows.batch(share.size(p.batch_size), drop_remainder=True))

    @base_input.without_autograph
    def evaluation_dataset(self) -> tf.data.Dataset:
        """Returns every row once, in stored order; the last batch is padded with rows of weight 0."""
        numbers = row_order.padded(self.num_examples, self.params.batch_size)
        return self._batches(numbers.map(lambda numbers: (numbers, -1 - numbers)))

    @property
    def num_examples(self) -> int:
        """Number of rows in an epoch."""
        return len(self._columns[0])

    def _batches(self, rows):
        count = self.num_examples

        def batch(numbers, visits):
            known = tf.minimum(numbers, count - 1)
            return self._batch([tf.gather(column, known) for column in self._columns], numbers < count, visits)

        return self._finish(base_input.parallel_map(rows, batch))
