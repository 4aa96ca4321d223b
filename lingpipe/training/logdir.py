"""The log directory, with the layout of Lingvo.

::

    control/lock                 held by the training run that writes here
    control/params.txt           the params, as text that can be read again
    control/model_analysis.txt   every layer, its partition and device
    control/versions.txt         the processor, GPUs and versions of packages, one per line
    control/mlflow_run.txt       the run of a tracker, one file for each tracker
    control/left_out.json        lost workers that training continues without, and the number of all devices
    layer_times.json             measured times of layers, if the cut balances time
    train/ckpt-*, train/events*  checkpoints and training curves
    eval_test/events*            evaluation curves, one folder for each dataset
    best/ckpt-*, best/best.json  the checkpoint with the best metric
    trace/                       picture and trace file of --mode=trace
    plan/                        picture and table of --mode=plan
    export/                      model.keras and saved_model/ of --mode=export
    report.html                  all of it on one page, by --mode=report
"""

import contextlib
import fcntl
import json
import os
import platform
import socket
from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf
from absl import logging

from lingpipe import host_processor
from lingpipe.training import errors

_PACKAGES = ('lingpipe', 'tensorflow', 'tensorflow-cpu', 'tensorflow-tpu', 'keras', 'numpy')
_OF_LAYERS = ('task.body.layers', 'task.body.model', 'task.body.dtype_policy')
_PATTERNS = '*?[\\'


class LogDir:
    """The files of one training run. Their folder may be remote, such as 'gs://bucket/run'.

    Raises:
        ValueError: the path has a character that TensorFlow treats as a file pattern, such as '*'.
    """

    def __init__(self, path: Any) -> None:
        self.path = os.path.expanduser(path)
        if any(character in self.path for character in _PATTERNS):
            raise ValueError(f'--logdir={self.path} is a pattern for TensorFlow. Choose a path without *, ?, [ and \\.')
        self.train, self.best, self._control = (tf.io.gfile.join(self.path, name)
                                                for name in ('train', 'best', 'control'))

    def create(self) -> None:
        """Create missing folders of a training run. Raise TrainingError if this fails."""
        self.create_folder('train')
        self.create_folder('control')

    def create_folder(self, name: str) -> str:
        """Create a folder in the log directory, if needed, and return its path.

        Raises:
            TrainingError: the folder cannot be created.
        """
        folder = tf.io.gfile.join(self.path, name)
        try:
            tf.io.gfile.makedirs(folder)
        except tf.errors.OpError as error:
            raise errors.TrainingError(
                f'--logdir={self.path} cannot be written to ({errors.cause(error)}). Choose a folder of yours on a '
                'disk with free space.') from error
        return folder

    def write_files(self, folder: str, files: Mapping[str, str | bytes]) -> list[str]:
        """Write or replace `files`, {name: contents}, in a folder of the log directory. Return the paths."""
        paths = [tf.io.gfile.join(self.create_folder(folder), name) for name in files]
        for path, contents in zip(paths, files.values()):
            replace_text(path, contents)
        return paths

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Inside this scope, let no other process train here. Some file systems, such as 'gs://', cannot be locked.

        Raises:
            TrainingError: another process trains in the log directory.
        """
        control = self._control.removeprefix('file://')
        if '://' in control:
            yield
            return
        with open(os.path.join(control, 'lock'), 'a+') as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                file.seek(0)
                raise errors.TrainingError(
                    f'--logdir={self.path} is in use by another process ({file.read().strip()}). Wait for its end, '
                    'stop it, or choose another --logdir; nothing was changed.') from error
            except OSError:
                pass  # this file system has no locks
            file.truncate(0)
            file.write(f'process {os.getpid()} on {socket.gethostname()}\n')
            file.flush()
            yield

    def require(self) -> None:
        """Raise TrainingError if the folder does not exist."""
        if not tf.io.gfile.isdir(self.path):
            raise errors.TrainingError(
                f'There is no folder --logdir={self.path}, and none was made. Give the folder that a training run '
                'writes to.')

    def evaluation(self, dataset_name: str) -> str:
        """Return the folder for evaluations on 'Dev' or 'Test'."""
        return tf.io.gfile.join(self.path, f'eval_{dataset_name.lower()}')

    def require_run(self, params_text: str) -> None:
        """Raise TrainingError if there is no folder. Warn if `params_text` has another model than the folder's run."""
        self.require()
        earlier = self.read('control', 'params.txt')
        if earlier and _of_layers(earlier) != _of_layers(params_text):
            logging.warning('This command has another model than the training run in %s. Give it the same '
                            '--model_params_override, which are in control/params.txt.', self.path)

    def read(self, *names: str) -> str | None:
        """Return the text of a file in the log directory, or None if there is no such file. `names` form the path."""
        return read_text(tf.io.gfile.join(self.path, *names))

    def write_control(self, params_text: str, analysis_text: str) -> None:
        """Write the params, the analysis of the model, and `versions()` to the folder 'control'."""
        self.write_control_file('params.txt', params_text)
        self.write_control_file('model_analysis.txt', analysis_text + '\n')
        self.write_control_file('versions.txt', ''.join(f'{name} {version}\n' for name, version in versions().items()))

    def write_control_file(self, name: str, text: str) -> None:
        """Write or replace a file of the folder 'control'."""
        replace_text(tf.io.gfile.join(self._control, name), text)

    def read_versions(self) -> dict[str, str]:
        """Return the `versions` that `write_control` wrote, or an empty dictionary."""
        return dict(line.split(' ', 1) for line in (self.read('control', 'versions.txt') or '').splitlines())

    def read_left_out(self) -> tuple[list[str], int | None] | None:
        """Return the arguments of the last `write_left_out`, or None."""
        text = self.read('control', 'left_out.json')
        if text is None:
            return None
        record = json.loads(text)
        return record['left_out'], record['num_devices']

    def write_left_out(self, names: list[str], num_devices: int | None = None) -> None:
        """Record lost workers, for which a restarted chief does not wait.

        `names` has names such as 'worker:1'. `num_devices` counts the devices of all workers; None if unknown.
        """
        self.write_control_file('left_out.json', json.dumps({'left_out': names, 'num_devices': num_devices}) + '\n')


def versions() -> dict[str, str]:
    """Return the names of the processor and the GPUs, and the versions of Python and packages."""
    found = {'processor': f'{host_processor.name()}, {host_processor.num_cores()} cores'}
    gpus = [tf.config.experimental.get_device_details(gpu) for gpu in tf.config.list_physical_devices('GPU')]
    if gpus:
        found['gpus'] = f'{len(gpus)} x {gpus[0].get("device_name", "unknown")}'
    return {**found, 'python': platform.python_version(), **host_processor.installed(_PACKAGES)}


def _of_layers(params_text: str) -> list[str]:
    return [line for line in params_text.splitlines() if line.startswith(_OF_LAYERS)]


def read_text(file: str) -> str | None:
    """Return the text of a file, or None if there is no such file."""
    if not tf.io.gfile.exists(file):
        return None
    with tf.io.gfile.GFile(file, 'rb') as stream:
        return stream.read().decode()


def replace_text(file: str, text: str | bytes) -> None:
    """Write or replace a file atomically."""
    with tf.io.gfile.GFile(f'{file}.new', 'wb') as stream:
        stream.write(text)
    tf.io.gfile.rename(f'{file}.new', file, overwrite=True)
