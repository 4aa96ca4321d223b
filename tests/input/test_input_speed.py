"""The fields of `ImageInput` that make it fast change nothing of what comes out."""

import functools

import pytest
import tensorflow as tf

from lingpipe.input import batch_share, image_input, image_pixels
from tests.input import exact_order, photographs

WAYS = [{'cache': False}, {'cache': True, 'augmentation': 'crop_flip'}, {'cache': True, 'augmentation': 'none'}]


@pytest.fixture(scope='module')
def data_dir(tmp_path_factory):
    return photographs.prepare('good_photographs', tmp_path_factory.mktemp('data'))


def make_input(data_dir, **fields):
    defaults = {'augmentation': 'resnet', 'batch_size': 6, 'image_size': 24, 'cache': False, 'shuffle_buffer_size': 10}
    return image_input.ImageInput.Params().Set(
        dataset='good_photographs', data_dir=data_dir, **{**defaults, **fields}).Instantiate()


@functools.cache
def training_examples(data_dir, position=0, count=96, **fields):
    """As a rule two epochs and a part of a third."""
    return exact_order.all_columns(make_input(data_dir, **fields).training_dataset(position).take(count // 6))


@pytest.mark.slow
def test_batches_made_ahead_are_those_made_in_time(data_dir):
    exact_order.assert_equal_columns(training_examples(data_dir, prefetch=0), training_examples(data_dir))


@pytest.mark.parametrize('augmentation', ['crop_flip', 'none'])
def test_what_is_kept_in_memory_does_not_matter_where_nothing_is_shuffled(data_dir, augmentation):
    exact_order.assert_equal_columns(*(
        training_examples(data_dir, augmentation=augmentation, cache=cache, shuffle=False) for cache in (False, True)))


@pytest.mark.slow
@pytest.mark.parametrize('fields', WAYS, ids=str)
def test_training_resumes_bit_for_bit_and_is_shared_whatever_is_cached(data_dir, fields):
    """The batches go on across the end of an epoch of 40 examples."""
    exact_order.assert_training_is_exact(make_input(data_dir, **fields), 96, (45, 1, 40), num_shares=3)
    assert sorted(training_examples(data_dir, **fields)[1][:40]) == list(range(40))


def test_evaluation_is_alike_from_memory_and_from_files(data_dir):
    files, memory = (
        exact_order.all_columns(make_input(data_dir, augmentation='none', cache=cache).evaluation_dataset())
        for cache in (False, True))
    exact_order.assert_equal_columns(files, memory)
    assert files[2].sum() == 40 and len(files[2]) == 42


@pytest.mark.slow
def test_a_share_decodes_its_rows_alone(data_dir, monkeypatch):
    """In stored order, half of each batch is the same half of the 40 images in every epoch."""
    decoded = []
    read = image_pixels.PixelReader.read

    def noting(self, images, *rest):
        with tf.control_dependencies([tf.numpy_function(decoded.extend, [images], [])]):
            return read(self, tf.identity(images), *rest)

    monkeypatch.setattr(image_pixels.PixelReader, 'read', noting)
    for share, count in ((batch_share.WHOLE, 40), (batch_share.Share(1, 2), 20)):
        decoded.clear()
        list(make_input(data_dir, batch_size=8, shuffle=False).training_dataset(0, share).take(10))
        assert len(set(decoded)) == count


def test_nothing_is_made_ahead_without_prefetch(data_dir):
    options = make_input(data_dir, prefetch=0).training_dataset().options()
    assert options.experimental_optimization.apply_default_optimizations is False
    assert options.deterministic
