import random
import socket

import numpy as np
import pytest
import tensorflow_datasets as tfds
from sklearn import datasets

from lingpipe.input import digits_dataset, tfds_builders


@pytest.fixture(scope='module')
def prepared(tmp_path_factory):
    data_dir = tmp_path_factory.mktemp('data')
    tfds_builders.TfdsImages('digits', 'train', data_dir)
    return tfds.builder('digits', data_dir=data_dir)


def read(builder, split):
    examples = builder.as_dataset(split=split, batch_size=-1, as_supervised=True)
    return tuple(part.numpy() for part in examples)


def test_the_two_splits_are_the_scikit_learn_digits_each_once(prepared):
    images, labels = (np.concatenate(parts) for parts in zip(read(prepared, 'train'), read(prepared, 'test')))
    reference = datasets.load_digits()
    stored = {image.tobytes(): label for image, label in zip(images, labels)}
    # No two of the 1,797 images are equal, so a full set means that no image stands in both splits.
    assert len(stored) == 1797
    for image, label in zip(np.round(reference.images * 255 / 16).astype(np.uint8), reference.target):
        assert stored[image.tobytes()] == label


def test_preparing_opens_no_connection(tmp_path, monkeypatch):
    def refuse(*args):
        raise AssertionError(f'a connection was opened: {args}')

    monkeypatch.setattr(socket.socket, 'connect', refuse)
    monkeypatch.setattr(socket, 'getaddrinfo', refuse)
    assert tfds_builders.TfdsImages('digits', 'test', tmp_path).num_examples > 0


def test_two_processes_that_prepare_at_once_do_not_disturb_each_other(tmp_path, monkeypatch):
    """The second one starts, with the same Python seed, after the first one, and ends before it."""
    generate = digits_dataset.Digits._generate_examples
    directories = []

    def generate_after_another_process(self, *args):
        directories.append(self.data_dir)
        if len(directories) == 1:
            random.seed(0)
            tfds_builders.TfdsImages('digits', 'train', tmp_path)
        return generate(self, *args)

    monkeypatch.setattr(digits_dataset.Digits, '_generate_examples', generate_after_another_process)
    random.seed(0)
    images = tfds_builders.TfdsImages('digits', 'train', tmp_path)
    assert len(set(directories)) == 2
    assert len(list(images.encoded_examples())) == images.num_examples == 1437
    assert [path.name for path in (tmp_path / 'digits').iterdir()] == ['2.0.0']


def test_preparing_leaves_the_random_state_of_the_program_alone(tmp_path):
    random.seed(3)
    expected = random.random()
    random.seed(3)
    tfds_builders.TfdsImages('digits', 'train', tmp_path)
    assert random.random() == expected
