import pytest
import tensorflow as tf

from lingpipe.input import row_order


@pytest.mark.parametrize(('index', 'expected'), [(0, [0, 1, 6, 7]), (1, [2, 3, 8, 9]), (2, [4, 5, 10, 11])])
def test_a_share_has_its_rows_of_each_batch(index, expected):
    rows = row_order.Share(index, 3).of(tf.data.Dataset.range(12), 6)
    assert [int(row) for row in rows] == expected


def test_a_batch_that_the_shares_do_not_divide_is_refused():
    with pytest.raises(ValueError, match='input.batch_size: a batch has 32 rows for 3 workers, .* Set it to a multiple '
                                         'of 3.'):
        row_order.Share(0, 3).size(32)
