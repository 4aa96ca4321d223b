"""Training runs of a tiny model: fixtures that make them, and that compare what they left."""

import pathlib
import shutil
from typing import NamedTuple

import pytest
import tensorflow as tf

from lingpipe.input import image_sources
from lingpipe.training import trainer
from tests.programs import tiny_digits


class Run(NamedTuple):
    """A training that has ended, with what `Trainer.run` returned."""

    logdir: pathlib.Path
    trainer: trainer.Trainer
    results: dict


class TinyRuns:
    """Makes params, trainers and runs of the tiny model, whose data are prepared once."""

    def __init__(self, data_dir):
        self._data_dir = data_dir
        self.images_in_memory = {}

    def params(self, model='TinyDigits', **overrides):
        """Return the params of an experiment; `overrides` have '__' for '.', as in `train__max_steps=5`."""
        experiment = getattr(tiny_digits, model)()
        params = experiment.Model()
        params.Define('input', experiment.Train(), 'The input of Train.')
        return params.Set(**{name.replace('__', '.'): value for name, value in overrides.items()})

    def evaluation_inputs(self):
        return {'Test': tiny_digits.TinyDigits().Test()}

    def trainer(self, logdir, *args, **overrides):
        return trainer.Trainer(self.params(*args, **overrides), self.evaluation_inputs(), logdir)

    def only_train(self, logdir, *args, **overrides):
        """Run without the evaluation at the end, for tests that look at checkpoints alone."""
        trainer.Trainer(self.params(*args, **overrides), {}, logdir).run()

    def train(self, logdir, *args, **overrides):
        made = self.trainer(logdir, *args, **overrides)
        return Run(pathlib.Path(logdir), made, made.run())


@pytest.fixture(scope='session')
def tiny(tmp_path_factory):
    return TinyRuns(str(tmp_path_factory.mktemp('data')))


@pytest.fixture(scope='module', autouse=True)
def images_are_loaded_once(tiny):
    """What trainings keep in memory is kept for all of them: to load it again is a quarter of what a tiny one takes."""
    load, known = image_sources.ImageSources._kept.func, tiny.images_in_memory

    def kept(self):
        key = self._data.folder, str(self._data._split), self._size, str(self._cropping), str(self._params)
        if key not in known:
            known[key] = load(self)
        return known[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(image_sources.ImageSources, '_kept', property(kept))
        yield


@pytest.fixture(scope='session')
def finished(tiny, tmp_path_factory):
    """An uninterrupted run of 12 steps with checkpoints of steps 1, 4, 8 and 12; not to be changed."""
    logdir = tmp_path_factory.mktemp('finished') / 'logs'
    return tiny.train(logdir, train__save_interval_seconds=0.0, eval__interval_steps=4)


@pytest.fixture
def copied(finished, tmp_path):
    """Folder of a copy of the finished run, to resume from or to damage."""
    return shutil.copytree(finished.logdir, tmp_path / 'copied')


@pytest.fixture
def stored():
    """Function that returns {name: array} of everything in a checkpoint but TensorFlow's own bookkeeping."""

    def read(path):
        reader = tf.compat.v1.train.NewCheckpointReader(str(path))
        return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()
                if not name.startswith(('_', 'save_counter'))}

    return read


@pytest.fixture
def assert_same_checkpoint(stored):
    """Function that asserts that two checkpoints hold the same values, bit for bit."""

    def compare(one, other):
        values, others = stored(one), stored(other)
        assert values.keys() == others.keys()
        assert not [name for name in values if values[name].tobytes() != others[name].tobytes()]

    return compare
