import numpy as np
import pytest
import tensorflow as tf

from lingpipe.stages import micro_batches


@pytest.mark.parametrize('num_rows, num_micro_batches, sizes', [
    (8, 4, [2, 2, 2, 2]), (10, 4, [2, 3, 2, 3]), (7, 3, [2, 2, 3]), (5, 1, [5])])
@pytest.mark.parametrize('is_static', [True, False])
def test_micro_batches_are_consecutive_rows_of_nearly_equal_number(num_rows, num_micro_batches, sizes, is_static):
    rows = np.arange(2.0 * num_rows, dtype=np.float32).reshape(num_rows, 2)
    split = tf.function(
        lambda batch: micro_batches.split(batch, num_micro_batches),
        input_signature=[tf.TensorSpec([num_rows if is_static else None, 2])])
    parts = split(rows)
    assert [part.shape[0] for part in parts] == sizes
    counts = micro_batches.numbers_of_rows(rows, num_micro_batches)
    assert counts == sizes
    np.testing.assert_array_equal(micro_batches.join(parts, counts), rows)


def test_an_empty_micro_batch_has_a_row_that_does_not_count():
    @tf.function(input_signature=[tf.TensorSpec([None])])
    def cut(batch):
        parts, counts = micro_batches.split(batch, 4), micro_batches.numbers_of_rows(batch, 4)
        return parts, counts, micro_batches.join(parts, counts)

    parts, counts, joined = cut(tf.constant([5.0, 7.0]))
    assert [part.numpy().tolist() for part in parts] == [[5.0], [5.0], [7.0], [7.0]]
    assert [int(count) for count in counts] == [0, 1, 0, 1]
    np.testing.assert_array_equal(joined, [5.0, 7.0])


@pytest.mark.parametrize('num_rows, expected', [(8, 4), (4, 4), (3, 3), (1, 1)])
def test_a_small_batch_gives_one_micro_batch_a_row(num_rows, expected):
    assert micro_batches.count((tf.ones([num_rows, 2]), tf.ones([num_rows])), 4) == expected


def test_an_input_without_batch_dimension_is_refused():
    with pytest.raises(ValueError, match='scalar'):
        micro_batches.count((tf.ones([8, 2]), tf.ones([])), 4)
