"""Rows of the table of cuts, by hand."""


def test_a_row_shows_how_heavy_the_heaviest_partition_of_each_rule_is(load_benchmark):
    """Costs 4 1 1 2 over two partitions: the exact cut is 4 | 1 1 2. The histogram puts a first layer that ends at 4 / 8
    into the second partition, which leaves nothing for the first."""
    row = load_benchmark('speed.gpipe_cuts').cut_row([4, 1, 1, 2], [1e6, 2e6, 3e6, 4e6], 2)
    assert row[:3] == [2, '1.000', '1 3']
    assert row[5:7] == ['2.000', '0 4']
    assert row[-1] == '1.0 9.0'
