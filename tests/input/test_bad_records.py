"""Records that cannot be used are counted, named and skipped, up to a limit."""

import shutil

import numpy as np
import pytest
import tensorflow as tf

from lingpipe.input import image_input
from tests.input import exact_order, photographs


@pytest.fixture(scope='module')
def data_dir(tmp_path_factory):
    return photographs.prepare('bad_photographs', tmp_path_factory.mktemp('data'))


@pytest.fixture(scope='module')
def good_dir(tmp_path_factory):
    return photographs.prepare('good_photographs', tmp_path_factory.mktemp('good'))


def make_input(data_dir, **fields):
    defaults = {'dataset': 'bad_photographs', 'augmentation': 'resnet', 'batch_size': 8, 'image_size': 24}
    return image_input.ImageInput.Params().Set(data_dir=data_dir, **{**defaults, **fields}).Instantiate()


def names_of_bad_records(data_dir):
    """The names of the records of the bad examples."""
    stored = make_input(data_dir)._data.encoded_examples()
    return {'record {1} of {0}'.format(*identifier.decode().split('__'))
            for _, label, identifier in stored.as_numpy_iterator() if label in photographs.BAD}


@pytest.mark.parametrize('augmentation', ['resnet', 'crop_flip'])
def test_each_kind_of_bad_record_is_named_and_skipped(data_dir, augmentation):
    photos = make_input(data_dir, augmentation=augmentation)
    images, labels, weights = exact_order.all_columns(photos.training_dataset().take(10))
    for epoch in np.arange(80).reshape(2, 40):
        assert sorted(labels[epoch]) == list(range(40))
        assert set(labels[epoch][weights[epoch] == 0]) == set(photographs.BAD)
    assert set(images[weights == 0].flat) <= {-1, 0}  # black, and the border of augmentation
    assert all(np.ptp(image) > 0 for image in images[weights == 1])
    assert set(photos.bad_records) == names_of_bad_records(data_dir)


def test_good_examples_are_what_they_are_without_bad_ones_beside_them(data_dir, good_dir):
    found, expected = (exact_order.all_columns(make_input(folder, dataset=name, shuffle=False).training_dataset().take(5))
                       for folder, name in ((data_dir, 'bad_photographs'), (good_dir, 'good_photographs')))
    is_good = found[2] == 1
    exact_order.assert_equal_columns([column[is_good] for column in found], [column[is_good] for column in expected])


def test_evaluation_counts_no_bad_record(data_dir):
    photos = make_input(data_dir, max_bad_records=6)
    _, labels, weights = exact_order.all_columns(photos.evaluation_dataset())
    assert set(labels[weights == 1]) == set(range(40)) - set(photographs.BAD)
    assert len(photos.bad_records) == len(photographs.BAD)


def test_one_more_than_is_allowed_ends_the_training_run(data_dir):
    photos = make_input(data_dir, max_bad_records=5)
    with pytest.raises(tf.errors.InvalidArgumentError) as error:
        exact_order.all_columns(photos.training_dataset().take(10))
    *_, last = photos.bad_records
    for words in ('max_bad_records: 6 records of', data_dir, '5 are allowed', last, photos.bad_records[last]):
        assert words in error.value.message


def test_a_truncated_file_ends_the_training_run(good_dir, tmp_path):
    shutil.copytree(good_dir, tmp_path, dirs_exist_ok=True)
    file = next(tmp_path.glob('**/*00002-of-00004'))
    content = file.read_bytes()
    file.write_bytes(content[:len(content) // 2])
    photos = make_input(str(tmp_path), dataset='good_photographs')
    with pytest.raises(tf.errors.OpError, match='truncated record'):
        exact_order.all_columns(photos.training_dataset().take(5))
