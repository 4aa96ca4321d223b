"""The fields of `ImageInput` that make it fast change nothing of what comes out."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from lingpipe.input import batch_share, image_input, image_pixels
from tests.input import photographs, shares

SLOW = {
    'num_parallel_calls': 1, 'prefetch': 0, 'fuse_decode_and_crop': False, 'vectorize': False, 'max_bad_records': None}
ONE_BY_ONE = {'num_parallel_calls': 1, 'prefetch': 0}


@pytest.fixture(scope='module')
def data_dir(tmp_path_factory):
    return photographs.prepare('good_photographs', tmp_path_factory.mktemp('data'))


def make_input(data_dir, **fields):
    defaults = {'augmentation': 'resnet', 'batch_size': 6, 'image_size': 24, 'cache': 'none', 'shuffle_buffer_size': 10}
    return image_input.ImageInput.Params().Set(
        dataset='good_photographs', data_dir=data_dir, **{**defaults, **fields}).Instantiate()


def columns(batches):
    """All batches as (images, labels, weights)."""
    return [np.concatenate(column) for column in zip(*batches.as_numpy_iterator())]


@functools.cache
def training_examples(data_dir, position=0, count=96, **fields):
    """As a rule two epochs and a part of a third."""
    return columns(make_input(data_dir, **fields).training_dataset(position).take(count // 6))


def assert_equal_examples(actual, expected):
    for left, right in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(left, right)


@pytest.fixture(scope='module')
def slow_examples(data_dir):
    """The examples of the plainest pipeline."""
    return training_examples(data_dir, **SLOW)


@pytest.mark.parametrize('fields', [
    {'num_parallel_calls': 3, 'prefetch': None}, {'fuse_decode_and_crop': True}, {'vectorize': True},
    {'max_bad_records': 0}], ids=str)
def test_each_optimisation_gives_the_same_examples_in_the_same_order(data_dir, slow_examples, fields):
    assert_equal_examples(training_examples(data_dir, **{**SLOW, **fields}), slow_examples)


def test_all_optimisations_together_give_the_same_examples(data_dir, slow_examples):
    """Interpolation is bicubic by default."""
    assert_equal_examples(training_examples(data_dir, num_threads=2, interpolation='bicubic'), slow_examples)


@pytest.mark.parametrize('augmentation', ['inception', 'none'])
def test_what_is_kept_in_memory_does_not_matter_where_nothing_is_shuffled(data_dir, augmentation):
    streamed, *kept = (training_examples(data_dir, augmentation=augmentation, cache=cache, shuffle=False)
                       for cache in ('none', 'encoded', 'decoded'))
    for found in kept:
        assert_equal_examples(found, streamed)


def test_bilinear_interpolation_changes_pixels_only_slightly(data_dir, slow_examples):
    """It looks at the same parts of the images."""
    images, *rest = training_examples(data_dir, interpolation='bilinear')
    assert_equal_examples(rest, slow_examples[1:])
    assert 0 < np.abs(images - slow_examples[0]).mean() < 0.03  # of a range from -1 to 1


@pytest.mark.parametrize('augmentation', ['resnet', 'crop_flip'])
def test_encoded_and_decoded_images_in_memory_come_in_one_order(data_dir, augmentation):
    encoded, decoded = (training_examples(data_dir, augmentation=augmentation, cache=cache)
                        for cache in ('encoded', 'decoded'))
    assert_equal_examples(decoded, encoded)
    assert sorted(encoded[1][:40]) == list(range(40))


@pytest.mark.parametrize('cache', ['none', 'encoded'])
def test_training_resumes_bit_for_bit_whatever_is_cached(data_dir, slow_examples, cache):
    whole = slow_examples if cache == 'none' else training_examples(data_dir, augmentation='resnet', cache=cache)
    rest = training_examples(data_dir, 45, 48, cache=cache, vectorize=cache == 'none')
    assert_equal_examples(rest, [column[45:93] for column in whole])


def test_evaluation_is_alike_in_every_way(data_dir):
    slow, *fast = (columns(make_input(data_dir, **fields).evaluation_dataset())
                   for fields in (SLOW, {'cache': 'none'}, {'cache': 'encoded'}, {'cache': 'decoded'}))
    for found in fast:
        assert_equal_examples(found, slow)
    assert slow[2].sum() == 40 and len(slow[2]) == 42


@pytest.mark.parametrize('fields', [
    {}, {'vectorize': False}, {'cache': 'encoded'}, {'cache': 'decoded'},
    {'cache': 'decoded', 'augmentation': 'none'}], ids=str)
@pytest.mark.parametrize('position', [0, 45])
def test_shares_are_rows_of_the_same_batches(data_dir, fields, position):
    """The batches go on across the end of an epoch of 40 examples."""
    shares.assert_shares_are_the_batch(make_input(data_dir, **fields).training_dataset, 8, position, count=3)


@pytest.mark.parametrize('cache', ['none', 'encoded'])
def test_a_share_decodes_its_rows_alone(data_dir, cache, monkeypatch):
    """Images are read one after another, and none ahead."""
    counted = []
    from_encoded = image_pixels.PixelReader.from_encoded

    def count(self, images, *rest):
        with tf.control_dependencies([tf.numpy_function(counted.append, [tf.size(images)], [])]):
            return from_encoded(self, tf.identity(images), *rest)

    monkeypatch.setattr(image_pixels.PixelReader, 'from_encoded', count)
    counts = []
    for share in (batch_share.WHOLE, batch_share.Share(1, 2)):
        counted.clear()
        data = make_input(data_dir, batch_size=32, cache=cache, **ONE_BY_ONE)
        list(data.training_dataset(0, share).take(4))
        counts.append(sum(counted))
    assert counts == [128, 64]


def test_a_data_service_makes_shares_too(data_dir):
    dispatcher = tf.data.experimental.service.DispatchServer()
    worker = tf.data.experimental.service.WorkerServer(
        tf.data.experimental.service.WorkerConfig(dispatcher.target.split('://')[1]))
    data = make_input(data_dir, data_service=dispatcher.target)
    shares.assert_shares_are_the_batch(data.training_dataset, 4)
    del worker


def test_a_data_service_gives_the_same_batches_from_any_position(data_dir, slow_examples):
    dispatcher = tf.data.experimental.service.DispatchServer()
    worker = tf.data.experimental.service.WorkerServer(
        tf.data.experimental.service.WorkerConfig(dispatcher.target.split('://')[1]))
    found = training_examples(data_dir, 4, 54, data_service=dispatcher.target)
    assert_equal_examples(found, [column[4:58] for column in slow_examples])
    del worker


def test_the_pipeline_has_the_threads_it_asks_for(data_dir):
    options = make_input(data_dir, num_threads=3, num_parallel_calls=1, prefetch=0).training_dataset().options()
    assert options.threading.private_threadpool_size == 3
    assert options.experimental_optimization.map_parallelization is False
    assert options.experimental_optimization.apply_default_optimizations is False
    assert options.deterministic


@pytest.mark.parametrize(('fields', 'words'), [
    ({'cache': 'all'}, ['cache', 'all', 'encoded']),
    ({'num_parallel_calls': 0}, ['num_parallel_calls', '0', 'at least 1']),
    ({'prefetch': -1}, ['prefetch', '-1', 'at least 0']),
    ({'max_bad_records': -1}, ['max_bad_records', '-1', 'at least 0']),
    ({'interpolation': 'area'}, ['interpolation', 'area', 'bicubic']),
    ({'interpolation': 'bilinear', 'augmentation': 'none'}, ['interpolation', 'bilinear', 'none', 'cuts nothing out']),
    ({'data_service': 'grpc://host:1', 'cache': 'encoded'}, ['cache', 'encoded', 'data_service']),
])
def test_wrong_fields_are_named_with_what_is_allowed(data_dir, fields, words):
    with pytest.raises(ValueError) as error:
        make_input(data_dir, **fields)
    assert all(word in str(error.value) for word in words), error.value
