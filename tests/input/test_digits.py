import os
import random
import subprocess
import sys

import numpy as np
import pytest
from sklearn import datasets, model_selection

from lingpipe.input import digits, digits_dataset, image_input, tfds_builders


@pytest.fixture(scope='module')
def data_dir(tmp_path_factory):
    return str(tmp_path_factory.mktemp('data'))


def test_the_digits_and_their_split_are_those_of_scikit_learn():
    theirs, (images, labels) = datasets.load_digits(), digits.examples()
    np.testing.assert_array_equal(images[..., 0], np.round(theirs.images * 255 / 16))
    np.testing.assert_array_equal(labels, theirs.target)
    split = model_selection.train_test_split(range(1797), test_size=0.2, stratify=labels, random_state=0)
    assert [rows.tolist() for rows in digits.stratified_split().values()] == list(map(sorted, split))


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


def test_an_import_loads_no_tfds_writes_no_data_and_leaves_types_open(tmp_path):
    program = (
        'import sys, keras, lingpipe\n'
        'keras.config.set_floatx("float64")\n'
        'assert keras.layers.Dense(2).dtype == "float64"\n'
        'keras.config.set_floatx("float32")\n'
        'from lingpipe.training import trainer\n'
        'from params import amoebanet\n'
        'experiment = amoebanet.DEFAULT()\n'
        'for p in (experiment.Train(), experiment.Test()):\n'
        '    p.cls.InputSpec(p), p.Instantiate().evaluation_dataset()\n'
        'assert "tensorflow_datasets" not in sys.modules\n')
    environment = {**os.environ, 'HOME': str(tmp_path), 'TFDS_DATA_DIR': str(tmp_path / 'data')}
    subprocess.run([sys.executable, '-c', program], check=True, env=environment)
    assert not (tmp_path / 'data').exists() and not (tmp_path / 'tensorflow_datasets').exists()


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
