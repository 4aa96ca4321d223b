import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds

from lingpipe.input import digits, image_augmentation, image_input, tfds_builders
from tests.input import exact_order, photographs, published, small_datasets

NUM_DIGITS = 1437


class HalfLabelled(small_datasets.SmallDataset):
    """Eight images; the label of every second one is unknown."""

    features = tfds.features.FeaturesDict({
        'image': tfds.features.Image(shape=(8, 8, 1)), 'label': tfds.features.ClassLabel(num_classes=8)})

    def examples(self, split):
        return [{'image': np.full((8, 8, 1), i, np.uint8), 'label': i if i % 2 else -1} for i in range(8)]


@pytest.fixture(scope='module')
def sharded_dir(tmp_path_factory):
    """A directory with 40 photographs in four files."""
    return photographs.prepare('good_photographs', tmp_path_factory.mktemp('sharded'))


def make_input(data_dir=None, **fields):
    params = image_input.ImageInput.Params().Set(data_dir=data_dir, batch_size=50, augmentation='digits')
    return params.Set(**fields).Instantiate()


def make_sharded_input(sharded_dir, **fields):
    defaults = {'dataset': 'good_photographs', 'augmentation': 'inception', 'batch_size': 7, 'image_size': 16}
    return make_input(sharded_dir, **{**defaults, 'shuffle_buffer_size': 10, **fields})


def examples(dataset, count):
    """The first `count` examples as (images, labels)."""
    return exact_order.columns(dataset, count)[:2]


def test_digits_are_described():
    data = make_input(split='test', label_offset=1)
    assert (data.num_examples, data.num_classes, tuple(data.input_spec.shape)) == (360, 11, (50, 32, 32, 1))


def test_training_resumes_bit_for_bit_from_any_position():
    exact_order.assert_training_is_exact(  # shares of 25 rows: the last bits of a cosine depend on the place in a vector
        make_input(), 3 * NUM_DIGITS, (NUM_DIGITS - 20, 1, NUM_DIGITS, 2 * NUM_DIGITS + 123), num_shares=1)


@pytest.mark.parametrize('augmentation', ['crop_flip', 'resnet'])
def test_the_seed_of_tensorflow_does_not_matter(sharded_dir, augmentation):
    results = []
    for seed in (1, 2):
        tf.random.set_seed(seed)
        mixed = make_sharded_input(sharded_dir, augmentation=augmentation)
        results.append(examples(mixed.training_dataset(), 40))
    exact_order.assert_equal_columns(*results)


def test_files_come_in_a_new_order_in_every_epoch(sharded_dir):
    """Without a buffer only the order of the files is left."""
    mixed = make_sharded_input(sharded_dir, shuffle_buffer_size=1)
    _, labels = examples(mixed.training_dataset(), 240)
    assert len({tuple(epoch) for epoch in labels.reshape(6, 40)}) > 2


@pytest.mark.parametrize('augmentation', ['crop_flip', 'resnet'])
def test_without_shuffling_every_epoch_is_in_stored_order(sharded_dir, augmentation):
    mixed = make_sharded_input(sharded_dir, augmentation=augmentation, shuffle=False)
    _, stored = examples(mixed.evaluation_dataset(), 40)
    images, labels = examples(mixed.training_dataset(), 80)
    np.testing.assert_array_equal(labels, np.tile(stored, 2))
    assert not np.array_equal(images[:40], images[40:])


def test_two_seeds_give_two_orders_and_two_jitters():
    shuffled, unshuffled = (
        [make_input(split='train[:200]', seed=seed, shuffle=shuffle).training_dataset() for seed in (0, 1)]
        for shuffle in (True, False))
    orders = [examples(dataset, 200)[1] for dataset in shuffled]
    assert not np.array_equal(*orders)
    (images, labels), (other_images, other_labels) = (examples(dataset, 200) for dataset in unshuffled)
    np.testing.assert_array_equal(labels, other_labels)
    assert np.all(np.any(images != other_images, axis=(1, 2, 3)))


@pytest.mark.parametrize('fields', [{}, {'label_offset': 1}])
def test_images_without_a_label_have_weight_zero(tmp_path, fields):
    half = make_input(str(tmp_path), dataset='half_labelled', batch_size=8, augmentation='none', **fields)
    (_, labels, weights), = half.evaluation_dataset()
    is_labelled = weights.numpy() == 1
    assert sorted(labels.numpy()[is_labelled] - half.params.label_offset) == [1, 3, 5, 7]
    assert list(weights.numpy()[~is_labelled]) == [0] * 4 and (labels >= 0).numpy().all()


def test_evaluation_shows_the_plain_enlarged_digits_each_time_the_same():
    data = make_input(split='test')
    images, labels = examples(data.evaluation_dataset(), 360)
    encoded, stored_labels, _ = zip(*digits.DigitsImages('test').encoded_examples())
    stored = image_augmentation.normalize(tf.stack(list(map(tf.io.decode_png, encoded))), 'digits')
    np.testing.assert_allclose(images, tf.image.resize(stored, [32, 32], method='bilinear'), atol=1e-5)
    np.testing.assert_array_equal(labels, stored_labels)
    exact_order.assert_equal_columns(examples(data.evaluation_dataset(), 360), (images, labels))


@pytest.mark.parametrize(('fields', 'num_classes'), [
    ({'dataset': 'cifar10', 'augmentation': 'crop_flip_cutout'}, 10),
    pytest.param({'dataset': 'imagenet2012', 'augmentation': 'inception', 'image_size': 48, 'label_offset': 1}, 1001,
                 marks=pytest.mark.slow),
    ({'dataset': 'imagenet2012', 'augmentation': 'none', 'image_size': 24}, 1000),
])
def test_published_datasets_run_through_the_same_pipeline(tmp_path, fields, num_classes):
    published.write_metadata(fields['dataset'], tmp_path, num_examples=20)
    with tfds.testing.mock_data(num_examples=20, data_dir=str(tmp_path)):
        dataset = make_input(None, batch_size=8, **fields)
        assert dataset.num_classes == num_classes
        size = fields.get('image_size', 32)
        images, labels = examples(dataset.training_dataset(), 24)
        assert images.shape == (24, size, size, 3)
        assert np.abs(images).max() < 3
        resumed = examples(dataset.training_dataset(position=5), 8)
        exact_order.assert_equal_columns(resumed, [images[5:13], labels[5:13]])
        assert sum(weights.numpy().sum() for _, _, weights in dataset.evaluation_dataset()) == 20


@pytest.mark.parametrize(('fields', 'words'), [
    ({'dataset': 'cifar11'}, ['cifar11', 'cifar10', 'GeneratorBasedBuilder']),
    ({'split': 'tset'}, ['tset', "'test'", 'train[:90%]']),
    ({'augmentation': 'crop_flop'}, ['crop_flop', 'crop_flip']),
    ({'batch_size': 0}, ['batch_size', '0', 'at least 1']),
    ({'max_bad_records': None}, ['max_bad_records', 'None', 'at least 0']),
])
def test_wrong_fields_are_named_with_what_is_allowed(fields, words):
    with pytest.raises(ValueError) as error:
        make_input(**fields)
    assert all(word in str(error.value) for word in words), error.value


def test_a_batch_larger_than_the_dataset_cannot_train_but_evaluates():
    data = make_input(split='test', batch_size=400)
    assert len(list(data.evaluation_dataset())) == 1
    with pytest.raises(ValueError, match='batch_size: 400 is larger than the 360 examples'):
        data.training_dataset()


def test_data_that_cannot_be_prepared_are_asked_for_in_words(tmp_path, monkeypatch):
    def no_network(self, **kwargs):
        raise ConnectionError('Network is unreachable')

    monkeypatch.setattr(tfds.core.DatasetBuilder, 'download_and_prepare', no_network)
    with pytest.raises(RuntimeError) as error:
        tfds_builders.TfdsImages('cifar10', 'train', tmp_path)
    for word in ('cifar10', str(tmp_path), 'Network is unreachable', 'data_dir', 'TFDS_DATA_DIR', 'tfds build'):
        assert word in str(error.value)


def test_datasets_without_classes_are_refused(tmp_path):
    published.write_metadata('coco', tmp_path, num_examples=1)
    with pytest.raises(ValueError, match="'coco' is not an image classification, which needs 'image'.*; as features there "
                                         "are: "):
        tfds_builders.TfdsImages('coco', 'train', tmp_path)
