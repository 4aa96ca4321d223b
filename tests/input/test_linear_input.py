import numpy as np

from lingpipe.input import linear_input
from tests.input import exact_order


def make_input(**fields):
    return linear_input.LinearInput.Params().Set(num_examples=10, batch_size=4, **fields).Instantiate()


def rows(dataset, count):
    return np.concatenate([features for features, _, _ in dataset.take(count).as_numpy_iterator()])


def test_noiseless_least_squares_find_the_true_weights_and_bias():
    data = make_input(noise=0.0, num_outputs=2, num_features=3)
    features, targets, _ = next(data.evaluation_dataset().batch(2).as_numpy_iterator())
    features, targets = features.reshape(8, 3), targets.reshape(8, 2)
    found = np.linalg.lstsq(np.c_[features, np.ones(8)], targets, rcond=None)[0]
    np.testing.assert_allclose(found, [*data.true_weights, data.true_bias], atol=1e-5)


def test_splits_share_the_true_weights_and_no_example():
    train, test = make_input(split='train'), make_input(split='test')
    np.testing.assert_array_equal(train.true_weights, test.true_weights)
    both = [tuple(row) for data in (train, test) for row in rows(data.evaluation_dataset(), 2)]
    assert len(set(both)) == 16


def test_every_epoch_has_every_example_once_in_an_order_of_its_own():
    first, second = np.split(rows(make_input(seed=1).training_dataset(), 5), 2)
    assert sorted(map(tuple, first)) == sorted(map(tuple, second)) and (first != second).any()
    assert (rows(make_input(seed=2).training_dataset(), 5)[:10] != first).any()


def test_training_resumes_and_is_shared():
    exact_order.assert_training_is_exact(make_input(), 28, (13, 3))
