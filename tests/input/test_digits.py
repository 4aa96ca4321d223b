import os
import subprocess
import sys

import numpy as np
import pytest
from sklearn import datasets

from lingpipe.input import digits, image_input, tfds_builders


@pytest.fixture(scope='module')
def data_dir(tmp_path_factory):
    return str(tmp_path_factory.mktemp('data'))


def test_the_split_is_pinned():
    split = digits.stratified_split(datasets.load_digits().target)
    assert split['test'][:8].tolist() == [21, 24, 28, 34, 35, 37, 39, 42]


@pytest.mark.parametrize('split', ['train', 'test'])
def test_batches_are_those_of_the_dataset_of_tfds(data_dir, split):
    def batches(folder):
        p = image_input.ImageInput.Params().Set(
            dataset='digits', split=split, batch_size=90, augmentation='digits', data_dir=folder, seed=5)
        data = p.Instantiate()
        assert data.num_examples == {'train': 1437, 'test': 360}[split]
        return [*data.training_dataset(1000).take(10), *data.evaluation_dataset()]

    for ours, theirs in zip(batches(None), batches(data_dir), strict=True):
        for part, expected in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(part, expected)


def test_data_read_again_and_again_are_the_same(data_dir):
    for source in (digits.DigitsImages('test'), tfds_builders.TfdsImages('digits', 'test', data_dir)):
        first, second = ([label.numpy() for _, label, _ in source.encoded_examples(seed)] for seed in (None, 3))
        assert first == second


def test_a_part_of_a_split_is_left_to_tfds(data_dir):
    assert not digits.are_at_hand('digits', 'train[:90%]', None)
    assert not digits.are_at_hand('digits', 'train', data_dir)
    assert digits.are_at_hand('digits', 'train', None)


def test_the_default_model_imports_no_tfds_and_writes_no_data(tmp_path):
    program = (
        'import sys\n'
        'from lingpipe.training import trainer\n'
        'from params import amoebanet\n'
        'experiment = amoebanet.DEFAULT()\n'
        'for p in (experiment.Train(), experiment.Test()):\n'
        '    p.cls.InputSpec(p), p.Instantiate().evaluation_dataset()\n'
        'assert "tensorflow_datasets" not in sys.modules\n')
    environment = {**os.environ, 'HOME': str(tmp_path), 'TFDS_DATA_DIR': str(tmp_path / 'data')}
    subprocess.run([sys.executable, '-c', program], check=True, env=environment)
    assert not (tmp_path / 'data').exists() and not (tmp_path / 'tensorflow_datasets').exists()
