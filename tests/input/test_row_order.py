import numpy as np

from lingpipe.input import row_order


def numbers(count, position, taken, **fields):
    return list(row_order.endless(count, position, **{'seed': 0, 'shuffle': True, **fields}).take(taken).as_numpy_iterator())


def test_every_epoch_visits_each_row_once_in_another_order():
    epochs = np.reshape(numbers(7, 0, 21), [3, 7])
    assert all(sorted(epoch) == list(range(7)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3
    assert numbers(7, 0, 7, seed=1) != numbers(7, 0, 7) and numbers(7, 0, 9, shuffle=False) == [*range(7), 0, 1]


def test_a_late_start_goes_on_where_it_would_be():
    whole = numbers(7, 0, 30)
    assert all(numbers(7, position, 8) == whole[position:position + 8] for position in (1, 6, 7, 20))
