"""Images in memory are those from files, and the shares of a batch are its rows."""

import pytest
import tensorflow as tf

from lingpipe.input import image_input, image_pixels, image_sources, row_order
from tests.input import exact_order, photographs

WAYS = [{}, {'augmentation': 'crop_flip'}, {'augmentation': 'none'}]


@pytest.fixture(scope='module')
def data_dir(tmp_path_factory):
    return photographs.prepare('good_photographs', tmp_path_factory.mktemp('data'))


def make_input(data_dir, **fields):
    defaults = {'augmentation': 'resnet', 'batch_size': 6, 'image_size': 24, 'shuffle_buffer_size': 10}
    return image_input.ImageInput.Params().Set(
        dataset='good_photographs', data_dir=data_dir, **{**defaults, **fields}).Instantiate()


@pytest.mark.parametrize('augmentation', ['crop_flip', 'none'])
def test_what_is_kept_in_memory_does_not_matter_where_nothing_is_shuffled(data_dir, augmentation, monkeypatch):
    def columns():
        data = make_input(data_dir, augmentation=augmentation, shuffle=False)
        return [*exact_order.columns(data.training_dataset(), 96), *exact_order.all_columns(data.evaluation_dataset())]

    memory = columns()
    monkeypatch.setattr(image_sources, 'MEMORY_LIMIT_BYTES', 0)
    exact_order.assert_equal_columns(columns(), memory)
    assert memory[5].sum() == 40 and len(memory[5]) == 42


@pytest.mark.slow
@pytest.mark.parametrize('fields', WAYS, ids=str)
def test_training_resumes_bit_for_bit_and_is_shared_whatever_is_cached(data_dir, fields):
    """The batches go on across the end of an epoch of 40 examples."""
    exact_order.assert_training_is_exact(make_input(data_dir, **fields), 96, (45, 1, 40), num_shares=3)
    assert sorted(exact_order.columns(make_input(data_dir, **fields).training_dataset(), 40)[1]) == list(range(40))


@pytest.mark.slow
def test_a_share_decodes_its_rows_alone(data_dir, monkeypatch):
    """In stored order, half of each batch is the same half of the 40 images in every epoch."""
    decoded = []
    read = image_pixels.PixelReader.read

    def noting(self, images, *rest):
        with tf.control_dependencies([tf.numpy_function(decoded.extend, [images], [])]):
            return read(self, tf.identity(images), *rest)

    monkeypatch.setattr(image_pixels.PixelReader, 'read', noting)
    for share, count in ((row_order.WHOLE, 40), (row_order.Share(1, 2), 20)):
        decoded.clear()
        list(make_input(data_dir, batch_size=8, shuffle=False).training_dataset(0, share).take(10))
        assert len(set(decoded)) == count
