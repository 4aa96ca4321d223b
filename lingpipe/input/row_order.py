"""The order in which training visits rows in memory: a pure function of seed and epoch."""

import numpy as np
import tensorflow as tf

_LAST_EPOCH = np.iinfo(np.int64).max // 4


def endless(count: int, position: int, seed: int, shuffle: bool) -> tf.data.Dataset:
    """Returns the numbers of rows, epoch after epoch; each epoch visits every row once.

    Args:
        count: number of rows.
        position: how many were visited before, over all epochs; starting late takes no time.
        seed: integer from 0 that determines the random orders.
        shuffle: whether orders are random; otherwise every epoch has the stored order.

    Returns:
        Endless `tf.data.Dataset` of int64 scalars.
    """
    first_epoch, first_index = divmod(position, count)

    def numbers_of_epoch(epoch):
        num_skipped = tf.where(epoch == first_epoch, tf.constant(first_index, tf.int64), tf.constant(0, tf.int64))
        return tf.data.Dataset.from_tensor_slices(_order(count, epoch, seed, shuffle)[num_skipped:])

    return tf.data.Dataset.range(first_epoch, _LAST_EPOCH).flat_map(numbers_of_epoch)


def _order(count, epoch, seed, shuffle):
    numbers = tf.range(count, dtype=tf.int64)
    if not shuffle:
        return numbers
    return tf.random.experimental.stateless_shuffle(numbers, tf.stack([tf.constant(seed, tf.int64), epoch]))


def padded(count: int, batch_size: int) -> tf.data.Dataset:
    """Returns batches `[batch_size]` of all numbers in order; numbers from `count` on pad the last batch."""
    return tf.data.Dataset.range(-(-count // batch_size) * batch_size).batch(batch_size, drop_remainder=True)
