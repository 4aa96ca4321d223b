import os
import random
import subprocess
import sys

import numpy as np
import pytest
import tensorflow_datasets as tfds
from sklearn import datasets, model_selection

from lingpipe.input import digits, image_input, tfds_builders
from tests.input import small_datasets


class Texts(small_datasets.SmallDataset):
    """A dataset whose examples a test makes."""

    features = tfds.features.FeaturesDict({'text': tfds.features.Text()})


def test_the_digits_and_their_split_are_those_of_scikit_learn():
    theirs, (images, labels) = datasets.load_digits(), digits.examples()
    np.testing.assert_array_equal(images[..., 0], np.round(theirs.images * 255 / 16))
    np.testing.assert_array_equal(labels, theirs.target)
    split = model_selection.train_test_split(range(1797), test_size=0.2, stratify=labels, random_state=0)
    assert [rows.tolist() for rows in digits.stratified_split().values()] == list(map(sorted, split))


@pytest.mark.parametrize(('split', 'rows'), [
    ('train', slice(None)), ('test', slice(None)), ('train[100:200]', slice(100, 200)), ('test[90%:]', slice(324, None))])
def test_parts_of_splits_are_those_of_tfds(split, rows):
    data = image_input.ImageInput.Params().Set(split=split, batch_size=50).Instantiate()
    whole = digits.DigitsImages(split.partition('[')[0])
    assert data.num_examples == len(range(*rows.indices(whole.num_examples)))
    labels = [label for _, batch, weights in data.evaluation_dataset() for label in batch[weights > 0].numpy()]
    assert labels == [int(label) for _, label, _ in whole.encoded_examples()][rows]


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
    directories = []

    def examples_after_another_process(self, split):
        directories.append(self.data_dir)
        if len(directories) == 1:
            random.seed(0)
            tfds_builders.prepared_builder('texts', str(tmp_path))
        return [{'text': 'a'}]

    monkeypatch.setattr(Texts, 'examples', examples_after_another_process, raising=False)
    random.seed(0)
    builder = tfds_builders.prepared_builder('texts', str(tmp_path))
    assert len(set(directories)) == 2 and builder.info.splits['train'].num_examples == 1
    assert [path.name for path in (tmp_path / 'texts').iterdir()] == ['1.0.0']
