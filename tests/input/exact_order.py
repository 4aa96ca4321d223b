"""What every input promises of its order: training resumes bit for bit, and shares of a batch are its rows."""

import numpy as np
import tensorflow as tf

from lingpipe.input import row_order


def columns(batches, count):
    """Return the first `count` rows of a dataset of batches, one array for each tensor."""
    return all_columns(batches.unbatch().take(count).batch(count))


def all_columns(batches):
    """Return all rows of batches, one array for each tensor."""
    return [np.concatenate(column) for column in zip(*[tf.nest.flatten(batch) for batch in batches])]


def assert_equal_columns(actual, expected):
    for column, other in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(column, other)


def assert_training_is_exact(data, num_rows, positions, num_shares=2):
    """Compare a whole training run of `num_rows` with those that start at other positions, and with their shares."""
    whole = columns(data.training_dataset(), num_rows)
    assert data.training_dataset().element_spec == data.batch_spec
    for position in positions:
        count = min(num_rows - position, 3 * data.params.batch_size)
        assert_equal_columns(columns(data.training_dataset(position), count),
                             [part[position:position + count] for part in whole])
    assert_shares_are_the_batch(data.training_dataset, num_rows // data.params.batch_size, positions[0], num_shares)


def assert_shares_are_the_batch(make_dataset, num_batches, position=0, count=2):
    """Compare all parts of some batches with those of `count` shares; `make_dataset(position, share)` makes them."""
    whole = _batches(make_dataset(position, row_order.WHOLE), num_batches)
    shares = [_batches(make_dataset(position, row_order.Share(index, count)), num_batches) for index in range(count)]
    for batch, *parts in zip(whole, *shares, strict=True):
        for column, *columns in zip(batch, *parts, strict=True):
            assert all(len(rows) == len(column) // count for rows in columns)
            assert np.concatenate(columns).tobytes() == column.tobytes()


def _batches(dataset, count):
    return [[part.numpy() for part in tf.nest.flatten(batch)] for batch in dataset.take(count)]
