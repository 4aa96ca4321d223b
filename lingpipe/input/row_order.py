"""Rows that training visits: their order, and the share of each process."""

import dataclasses
from collections.abc import Callable

import numpy as np
import tensorflow as tf

LAST_EPOCH = np.iinfo(np.int64).max // 4


def epochs(rows_of: Callable[[tf.Tensor], tf.data.Dataset], count: int, position: int) -> tf.data.Dataset:
    """Chain the datasets of all epochs, without end.

    Args:
        rows_of: function from the number of an epoch to a dataset of `count` rows.
        position: how many rows to skip at the start.
    """
    first_epoch, first_index = divmod(position, count)

    def rest_of(epoch):
        num_skipped = tf.where(epoch == first_epoch, tf.constant(first_index, tf.int64), tf.constant(0, tf.int64))
        return rows_of(epoch).skip(num_skipped)

    return tf.data.Dataset.range(first_epoch, LAST_EPOCH).flat_map(rest_of)


def endless(count: int, position: int, seed: int, shuffle: bool) -> tf.data.Dataset:
    """Return an endless dataset of int64 row numbers, each once per epoch. Skip the first `position` numbers."""
    def of_epoch(epoch):
        return numbers(count, tf.stack([tf.constant(seed, tf.int64), epoch]) if shuffle else None)

    return epochs(of_epoch, count, position)


def numbers(count: int, order_seed: tf.Tensor | None) -> tf.data.Dataset:
    """Return a dataset of the int64 row numbers below `count`. Shuffle them if `order_seed`, int64 [2], is given."""
    found = tf.range(count, dtype=tf.int64)
    if order_seed is not None:
        found = tf.random.experimental.stateless_shuffle(found, order_seed)
    return tf.data.Dataset.from_tensor_slices(found)


def from_files(read: Callable[[tf.Tensor | None], tf.data.Dataset], order_seed: tf.Tensor | None,
               buffer_size: int) -> tf.data.Dataset:
    """Return a dataset that reads every row of the files once, in shuffled order.

    Args:
        read: function that reads the files. Its argument is an int64 scalar, the seed that shuffles the files, or None.
        order_seed: seed that shuffles files and rows, int64 [2]. None: the stored order.
        buffer_size: number of rows in the shuffle buffer.
    """
    if order_seed is None:
        return read(None)
    # Dataset.shuffle mixes the graph's seed into its own. Setting the graph's seed here, for the function of one epoch,
    # makes the order independent of tf.random.set_seed.
    tf.compat.v1.get_default_graph().seed = 1
    seed = tf.random.stateless_uniform([], order_seed, minval=None, maxval=None, dtype=tf.int64)
    return read(seed).shuffle(buffer_size, seed=seed, reshuffle_each_iteration=False)


@dataclasses.dataclass(frozen=True)
class Share:
    """One of several equal parts of every batch. Each part has consecutive rows.

    ::

        examples in their order    0 1 2 3 4 5 6 7 8 9 ...
        batches of 4               [0 1 2 3] [4 5 6 7] ...
        share 0 of 2                0 1       4 5      ...
        share 1 of 2                    2 3       6 7  ...
    """

    index: int = 0
    count: int = 1

    def size(self, batch_size: int) -> int:
        """Return how many rows of a batch this share has. Raise ValueError if `count` does not divide `batch_size`."""
        if batch_size % self.count:
            raise ValueError(f'input.batch_size: a batch has {batch_size} rows for {self.count} workers, and each must '
                             f'get as many. Set it to a multiple of {self.count}.')
        return batch_size // self.count

    def of(self, examples: tf.data.Dataset, batch_size: int) -> tf.data.Dataset:
        """Return the examples of this share. `examples` must be endless, and begin at the start of a batch.

        Call this method before expensive work on examples.
        """
        size = self.size(batch_size)
        if self.count == 1:
            return examples
        return examples.batch(size, drop_remainder=True).shard(self.count, self.index).unbatch()


WHOLE = Share()
