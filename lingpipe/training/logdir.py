"""The log directory, with the layout of Lingvo.

::

    control/lock                 held by the training run that writes here, export_lock by an export
    control/params.txt           the params, as text that can be read again
    control/model_analysis.txt   every layer, its partition and device
    control/versions.txt         the processor, GPUs and versions of packages, one per line
    control/mlflow_run.txt       the run of a tracker, one file for each tracker
    control/evaluated.txt        the step of the newest evaluation
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
import re
import socket
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import tensorflow as tf
from absl import logging

from lingpipe import host_processor
from lingpipe.training import errors

_PACKAGES = ('lingpipe', 'tensorflow', 'tensorflow-cpu', 'tensorflow-tpu', 'keras', 'numpy')
_NUM_SHOWN = 80
_OF_LAYERS = ('task.body.layers', 'task.body.model', 'task.body.dtype_policy')
_REMOTE = re.compile('[A-Za-z][A-Za-z0-9.]*://')
_OF_PATTERNS = re.compile(r'[*?\[\\]')
_Record = TypeVar('_Record')


@contextlib.contextmanager
def hold_lock(file: str, folder: str) -> Iterator[Any]:
    """Hold a lock inside this scope, so that nothing else can hold it; the lock also ends with the process.

    It works on file systems of this machine that support locks, and has no effect on others, such as 'gs://'. The file
    is created if needed, and not deleted. `folder` is the locked folder, as the user named it.

    Raises:
        TrainingError: another process holds the lock, or the folder cannot be written to.
    """
    file = file.removeprefix('file://')
    if _REMOTE.match(file):
        yield
        return
    try:
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise errors.TrainingError(f'--logdir={folder} cannot be used: its lock {file} cannot be opened '
                                   f'({error.strerror}). Choose a folder of yours on a disk with space.') from error
    try:
        _lock(descriptor, folder)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, folder: str) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.read(descriptor, _NUM_SHOWN).decode(errors='replace').strip()
        raise errors.TrainingError(
            f'--logdir={folder} is in use by another process ({holder}). Wait for its end, stop it, or choose another '
            '--logdir; nothing was changed.') from error
    except OSError:
        return  # this file system has no locks
    with contextlib.suppress(OSError):  # the name of the holder is optional: the disk may be full
        os.truncate(descriptor, 0)
        os.write(descriptor, f'process {os.getpid()} on {socket.gethostname()}\n'.encode())


class LogDir:
    """The files of one training run, in a folder of this machine or elsewhere, such as 'gs://bucket/run'.

    Raises:
        ValueError: TensorFlow would take the path for a pattern.
    """

    def __init__(self, path: Any) -> None:
        refuse_patterns('--logdir', path)
        self.path = os.path.expanduser(path)
        self.train, self.best, self._control = (tf.io.gfile.join(self.path, name)
                                                for name in ('train', 'best', 'control'))

    def create(self) -> None:
        """Create the folder for a training run, if needed; raise TrainingError as `create_folder` does."""
        self.create_folder('train')
        self.create_folder('control')

    def create_folder(self, name: str) -> str:
        """Create a folder in this one, if needed, and return its path.

        Raises:
            TrainingError: it cannot be created.
        """
        folder = tf.io.gfile.join(self.path, name)
        try:
            tf.io.gfile.makedirs(folder)
        except tf.errors.OpError as error:
            raise errors.TrainingError(
                f'--logdir={self.path} cannot be written to ({errors.reason(error)}). Choose a folder of yours on a '
                'disk with free space.') from error
        return folder

    @contextlib.contextmanager
    def replaced_folder(self, name: str) -> Iterator[str]:
        """Yield a new folder; on exit its entries replace the entries with the same names in the folder `name`.

        Raises:
            TrainingError: the folder could not be written, or another process writes it.
        """
        folder, new = self.create_folder(name), tf.io.gfile.join(self.path, f'{name}.new')
        with hold_lock(tf.io.gfile.join(self.create_folder('control'), f'{name}_lock'), self.path):
            _remove_folder(new)
            try:
                tf.io.gfile.makedirs(new)
                yield new
                for file in tf.io.gfile.listdir(new):
                    old = tf.io.gfile.join(folder, file.rstrip('/'))
                    _remove_folder(old)
                    tf.io.gfile.rename(tf.io.gfile.join(new, file.rstrip('/')), old, overwrite=True)
            except (OSError, tf.errors.OpError) as error:
                raise errors.TrainingError(f'{folder} could not be written ({errors.cause(error)}). Free some space, '
                                           'then run the same command again.') from error
            finally:
                _remove_folder(new)

    def write_files(self, folder: str, files: Mapping[str, str | bytes]) -> list[str]:
        """Write or replace files, {name: contents}, in a folder of the log directory; return their paths."""
        paths = [tf.io.gfile.join(self.create_folder(folder), name) for name in files]
        for path, contents in zip(paths, files.values()):
            replace_text(path, contents)
        return paths

    def lock(self) -> Any:
        """Return the scope in which no other training can run here; see `hold_lock`."""
        return hold_lock(tf.io.gfile.join(self._control, 'lock'), self.path)

    def require(self) -> None:
        """Raise TrainingError if the folder does not exist."""
        if not tf.io.gfile.isdir(self.path):
            raise errors.TrainingError(
                f'There is no folder --logdir={self.path}, and none was made. Give the folder that a training run '
                'writes to.')

    def evaluation(self, dataset_name: str) -> str:
        """Return the folder for evaluations on 'Dev' or 'Test'."""
        return tf.io.gfile.join(self.path, f'eval_{dataset_name.lower()}')

    def read_params(self) -> str | None:
        """Return the text of the params with which this run was started, or None."""
        return self.read('control', 'params.txt')

    def require_run(self, params_text: str) -> None:
        """Require this folder; warn if params describe another model than its run's: the weights may fit both."""
        self.require()
        earlier = self.read_params()
        told = of_the_model(changes(earlier, params_text)) if earlier else None
        if told:
            logging.warning('This command has another model than the training run in %s: %s. Give it the same '
                            '--model_params_override, which are in control/params.txt.', self.path, '; '.join(told))

    def read(self, *names: str) -> str | None:
        """Return the text of a file by its path below this folder, or None if there is no such file."""
        return parsed(tf.io.gfile.join(self.path, *names), str)

    def write_control(self, params_text: str, analysis_text: str) -> None:
        """Write the params, the analysis of the model, and the versions of hardware and packages."""
        self.write_control_file('params.txt', params_text)
        self.write_control_file('model_analysis.txt', analysis_text + '\n')
        self.write_control_file('versions.txt', ''.join(f'{name} {version}\n' for name, version in versions().items()))

    def write_control_file(self, name: str, text: str) -> None:
        """Write or replace a file of the folder 'control'."""
        replace_text(tf.io.gfile.join(self._control, name), text)

    def read_versions(self) -> dict[str, str]:
        """Return the `versions` that `write_control` wrote; empty if there are none."""
        return self._parsed('versions.txt', lambda text: dict(line.split(' ', 1) for line in text.splitlines())) or {}

    def _parsed(self, name: str, parse: Callable[[str], _Record]) -> _Record | None:
        return parsed(tf.io.gfile.join(self._control, name), parse)

    def read_left_out(self) -> tuple[list[str], int | None] | None:
        """Return the arguments of the last `write_left_out`; None if the training run has not begun."""
        return self._parsed('left_out.json', _left_out_of)

    def write_left_out(self, names: list[str], num_devices: int | None = None) -> None:
        """Record the workers that are left out, such as 'worker:1', for a chief that restarts.

        `num_devices` is the number of devices of all workers; None if the chief does not see them.
        """
        self.write_control_file('left_out.json', json.dumps({'left_out': names, 'num_devices': num_devices}) + '\n')

    def read_evaluated(self) -> int:
        """Return the step of the newest evaluation that came to its end; 0 if there is none."""
        return self._parsed('evaluated.txt', int) or 0

    def write_evaluated(self, step: int) -> None:
        """Record that the evaluation after a step came to its end."""
        self.write_control_file('evaluated.txt', f'{step}\n')


def versions() -> dict[str, str]:
    """Return what a run depends on, by name: the processor, GPUs, and versions of Python and packages."""
    found = {'processor': f'{host_processor.name()}, {host_processor.num_cores()} cores'}
    gpus = [tf.config.experimental.get_device_details(gpu) for gpu in tf.config.list_physical_devices('GPU')]
    if gpus:
        found['gpus'] = f'{len(gpus)} x {gpus[0].get("device_name", "unknown")}'
    return {**found, 'python': platform.python_version(), **host_processor.installed(_PACKAGES)}


def changes(old: str, new: str) -> list[str]:
    """Return what differs between an earlier and a later text of params, such as 'train.max_steps : 20 -> 30'.

    Params that replace None, and elements added to or removed from a list, are one change each. Other lines in only one
    of the texts come from another version or another model, and are left out.
    """
    before, after = map(_with_classes, (old, new))
    names = dict.fromkeys([*after, *before])
    of_one = [name for name in names if name.endswith(']') and (name in before) != (name in after)]
    outer = [name for name in of_one if not any(name != each and name.startswith(each) for each in of_one)]
    return [f'{name} : {_shown(before.get(name, "nothing"))} -> {_shown(after.get(name, "nothing"))}' for name in names
            if before.get(name) != after.get(name) and (name in outer or name in before and name in after)]


def _with_classes(text: str) -> dict[str, str]:
    """Return {path: value} of a text of params; the value of nested Params is the name of their class."""
    lines = [line.split(' : ', 1) for line in text.splitlines() if ' : ' in line]
    return {name.removesuffix('.cls'): value for name, value in lines}


def of_the_model(changed: list[str]) -> list[str]:
    """Return which `changes` make another model, not the same one on other devices."""
    return [change for change in changed if change.startswith('task.') and (
        not change.startswith('task.body.') or change.startswith(_OF_LAYERS))]


def _shown(value: str) -> str:
    return value if len(value) <= _NUM_SHOWN else f'{value[:_NUM_SHOWN]}...'


def refuse_patterns(name: str, path: Any) -> None:
    """Raise ValueError if TensorFlow would take the path of a flag or field for a pattern, and read other files."""
    found = _OF_PATTERNS.search(str(path))
    if found:
        raise ValueError(f'{name}={path} has the character {found[0]}, and TensorFlow takes such a path of checkpoints '
                         'for a pattern that stands for other paths. Choose or rename it to one without *, ?, [ and '
                         '\\; nothing was changed.')


def _remove_folder(folder: str) -> None:
    with contextlib.suppress(tf.errors.OpError):
        tf.io.gfile.rmtree(folder)


def _left_out_of(text: str) -> tuple[list[str], int | None]:
    record = json.loads(text)
    return list(record['left_out']), record['num_devices']


def parsed(file: str, parse: Callable[[str], _Record]) -> _Record | None:
    """Return what a function makes of the text of a file; None if there is no such file.

    Raises:
        TrainingError: the function raises an error, or the file cannot be read.
    """
    if not tf.io.gfile.exists(file):
        return None
    try:
        with tf.io.gfile.GFile(file, 'rb') as stream:
            return parse(stream.read().decode())
    except (tf.errors.OpError, ValueError, TypeError, LookupError, OverflowError) as error:
        reason = f'{type(error).__name__}: {errors.cause(error)[:_NUM_SHOWN]}'
        raise errors.TrainingError(f'{file} is corrupt ({reason}). Delete it, or choose another --logdir; nothing was '
                                   'changed.') from error


def replace_text(file: str, text: str | bytes) -> None:
    """Replace a file atomically, so that a full disk (a `TrainingError`) or a kill leaves the old one complete."""
    new = f'{file}.new'
    try:
        with tf.io.gfile.GFile(new, 'wb') as stream:
            stream.write(text)
        tf.io.gfile.rename(new, file, overwrite=True)
    except tf.errors.OpError as error:
        with contextlib.suppress(tf.errors.OpError):
            tf.io.gfile.remove(new)
        raise errors.TrainingError(
            f'{file} could not be written ({errors.reason(error)}). Free some space or choose another --logdir, then '
            'run the same command again.') from error
