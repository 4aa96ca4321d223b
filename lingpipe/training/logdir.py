"""The log directory, laid out as Lingvo users know it.

::

    control/params.txt           what was trained, as text that reads back
    control/model_analysis.txt   every layer, its partition and device
    train/ckpt-*, train/events*  checkpoints and training curves
    eval_test/events*            evaluation curves, one folder a dataset
    best/ckpt-*, best/best.json  the checkpoint with the best metric
"""

import json
import os
import pathlib

from lingpipe.training import errors


class LogDir:
    """The files of one training run.

    Args:
        path: folder of the run; created where it is not there.

    Raises:
        TrainingError: when nothing can be written there.
    """

    def __init__(self, path):
        self.path = pathlib.Path(path).expanduser()
        self.train, self.best, self._control = (self.path / name for name in ('train', 'best', 'control'))
        try:
            for folder in (self.train, self._control):
                folder.mkdir(parents=True, exist_ok=True)
            probe = self._control / f'probe_{os.getpid()}'
            probe.write_text('Can this folder be written to?')
            probe.unlink()
        except OSError as error:
            raise errors.TrainingError(
                f'--logdir={path} cannot be written to ({error.strerror or error}). Choose a folder of yours on a disk '
                'with free space.') from error

    def evaluation(self, dataset_name):
        """Returns the folder for evaluations on 'Dev' or 'Test'."""
        return self.path / f'eval_{dataset_name.lower()}'

    def read_params(self):
        """Returns the text of the params that this run was started with, or None."""
        file = self._control / 'params.txt'
        return file.read_text() if file.exists() else None

    def write_control(self, params_text, analysis_text):
        """Writes down what is being trained."""
        _write(self._control / 'params.txt', params_text)
        _write(self._control / 'model_analysis.txt', analysis_text + '\n')

    def read_best(self):
        """Returns the value of the best metric so far, or None."""
        file = self.best / 'best.json'
        return json.loads(file.read_text())['value'] if file.exists() else None

    def write_best(self, step, metric, value):
        """Writes down which checkpoint in 'best' is there and why."""
        _write(self.best / 'best.json', json.dumps({'step': step, 'metric': metric, 'value': value}) + '\n')


def _write(file, text):
    """Replaces a file at once, so that a full disk or a kill leaves the old one whole."""
    new = file.with_name(f'{file.name}.new')
    try:
        new.write_text(text)
        new.replace(file)
    except OSError as error:
        new.unlink(missing_ok=True)
        raise errors.TrainingError(
            f'{file} could not be written ({error.strerror or error}). Free some space or choose another --logdir, '
            'then run the same command again.') from error
