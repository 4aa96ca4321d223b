"""What a training tells about records that it could not use, on real images of which some are broken."""

import keras
import pytest

from lingpipe import base_model_params, layers
from lingpipe.input import image_input
from lingpipe.models import image_classifier
from lingpipe.training import trainer
from tests.curves import curve
from tests.input import photographs


@pytest.fixture(scope='module')
def data_dir(tmp_path_factory):
    return photographs.prepare('bad_photographs', tmp_path_factory.mktemp('data'))


def photos(data_dir):
    return image_input.ImageInput.Params().Set(
        data_dir=data_dir, dataset='bad_photographs', augmentation='resnet', batch_size=8, image_size=8)


class TinyPhotographs(base_model_params.SingleTaskModelParams):
    """A single layer that sorts the photographs."""

    def Train(self):
        return image_input.ImageInput.Params()

    def Task(self):
        p = image_classifier.ImageClassifier.Params().Set(name='tiny_photographs')
        p.body.Set(num_partitions=1, num_micro_batches=1, layers=[
            layers.KerasParams(keras.layers.Flatten),
            layers.KerasParams(keras.layers.Dense, units=photographs.NUM_EXAMPLES)])
        p.train.Set(max_steps=10, steps_per_loop=5, summary_interval_steps=5)
        return p


def test_training_names_bad_records_and_counts_them_in_a_curve(data_dir, tmp_path, capsys):
    params = TinyPhotographs().Model()
    params.Define('input', photos(data_dir), 'The input of Train.')
    trainer.Trainer(params, {'Test': photos(data_dir)}, str(tmp_path)).run()
    printed = capsys.readouterr()
    begin = printed.out.index('Train: bad records of ImageInput(')
    train, test = printed.out[begin:].splitlines()[:2]
    assert train.endswith('): 6, named in the log') and test.startswith('Test: bad records of ImageInput(')
    assert curve(tmp_path / 'train', 'bad_records') == [(5, 6.0), (10, 6.0)]
