"""What shares of batches have to be: their rows together, in their order, are the whole batches."""

import numpy as np
import tensorflow as tf

from lingpipe.input import batch_share


def assert_shares_are_the_batch(make_dataset, num_batches, position=0, count=2):
    """Compares all parts of some batches with those of `count` shares.

    Args:
        make_dataset: function that makes an input's `training_dataset` from a position and a `Share`.
        num_batches: number of batches to compare.
        position: number of examples seen before.
        count: number of shares.
    """
    whole = _batches(make_dataset(position, batch_share.WHOLE), num_batches)
    shares = [_batches(make_dataset(position, batch_share.Share(index, count)), num_batches) for index in range(count)]
    for batch, *parts in zip(whole, *shares, strict=True):
        for column, *columns in zip(batch, *parts, strict=True):
            assert all(len(rows) == len(column) // count for rows in columns)
            assert np.concatenate(columns).tobytes() == column.tobytes()


def _batches(dataset, count):
    return [[part.numpy() for part in tf.nest.flatten(batch)] for batch in dataset.take(count)]
