"""The checkpoints of a folder, and the record of the best checkpoint.

::

    train/ckpt-8.data-00000-of-00001    values
    train/ckpt-8.index                  names and shapes, see `checkpoint_contents`; written last, and deleted first
    train/ckpt-12_temp/                 files of a process that was killed while it wrote
    train/checkpoint                    list of the checkpoints, only for TensorFlow's own functions
    best/best.json                      step, metric and value of the checkpoint beside it
"""

import json
import math
import os
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

import tensorflow as tf
from absl import logging

from lingpipe.training import errors, logdir

_INDEX = re.compile(r'ckpt-\d+\.index')
_UNFINISHED = re.compile(r'ckpt-\d+(_temp|\.data-\d+-of-\d+)|checkpoint\.new|seen_by_all_[0-9a-f]{32}')


def read_newest(directory: str, read: Callable) -> tuple[str | None, list]:
    """Read the newest checkpoint of a folder. Skip corrupt checkpoints.

    `read(path)` reads a checkpoint, and raises `DamagedCheckpointError` if the checkpoint is corrupt.

    Returns:
        Path that was read, or None if there are no checkpoints; and a list of paths of newer, corrupt checkpoints.

    Raises:
        TrainingError: all checkpoints are corrupt, or `read` raises it.
    """
    damaged = []
    for path in complete(directory):
        try:
            read(path)  # only reading shows whether a file is corrupt, by TensorFlow's checksums of values
        except errors.TrainingError as error:
            if not is_complete(path):  # training has deleted it meanwhile, for a newer one
                return read_newest(directory, read)
            if not isinstance(error, errors.DamagedCheckpointError):
                raise
            damaged.append(error)
            continue
        for each in damaged:
            logging.warning('Checkpoint %s cannot be read (%s). Using %s, the newest that can be read; nothing was '
                            'deleted.', each.path, each.reason, path)
        return path, [each.path for each in damaged]
    if damaged:
        raise errors.TrainingError(
            f'None of the {len(damaged)} checkpoints in {directory} can be read; the newest is {damaged[0].path} '
            f'({damaged[0].reason}). Choose another --logdir; nothing was changed.')
    return None, []


def complete(directory: str | os.PathLike[str]) -> list[str]:
    """Return the paths of all complete checkpoints in a folder, from the newest to the oldest."""
    found = [name.removesuffix('.index') for name in _names_in(str(directory)) if _INDEX.fullmatch(name)]
    return [tf.io.gfile.join(str(directory), name) for name in sorted(found, key=step_of, reverse=True)]


def is_complete(path: str) -> bool:
    """Return whether a checkpoint has its index."""
    return tf.io.gfile.exists(f'{path}.index')


def step_of(path: str) -> int:
    """Return the step in a checkpoint's name."""
    return int(str(path).rsplit('-', 1)[1])


def keep_newest(path: str, max_to_keep: int, damaged: Collection[str] = ()) -> None:
    """Keep `path` and the newest others, `max_to_keep` in all. Delete the rest, except `damaged` checkpoints."""
    directory = os.path.dirname(path)
    others = [each for each in complete(directory) if each != path and each not in damaged]
    for each in others[max_to_keep - 1:]:
        delete(each)
    _write_list(directory, [*reversed(others[:max_to_keep - 1]), path])


def delete(path: str) -> None:
    """Delete the files of a checkpoint."""
    folder, name = os.path.split(path)
    for each in sorted(_names_in(folder), reverse=True):  # the index is deleted before the data
        if each.startswith(f'{name}.'):
            tf.io.gfile.remove(tf.io.gfile.join(folder, each))


def _write_list(directory: str, paths: list[str]) -> None:
    """Write the file in which TensorFlow looks for the newest checkpoint."""
    names = [os.path.basename(path) for path in paths]
    lines = [f'model_checkpoint_path: "{names[-1]}"\n', *(f'all_model_checkpoint_paths: "{name}"\n' for name in names)]
    logdir.replace_text(tf.io.gfile.join(directory, 'checkpoint'), ''.join(lines))


def remove_unfinished(directory: str) -> None:
    """Remove the files of unfinished checkpoints from a folder."""
    names = _names_in(directory)
    for name in names:
        if _UNFINISHED.fullmatch(name.rstrip('/')) and f'{name.partition(".")[0]}.index' not in names:
            file = tf.io.gfile.join(directory, name)
            (tf.io.gfile.rmtree if tf.io.gfile.isdir(file) else tf.io.gfile.remove)(file)


def _names_in(folder: str) -> list[str]:
    return tf.io.gfile.listdir(folder) if tf.io.gfile.exists(folder) else []


class BestCheckpoint:
    """The record of the best checkpoint, in best.json.

    Args:
        folder: path of the folder 'best' in the log directory.
        metric: name of the metric; None: no checkpoint is kept.
    """

    def __init__(self, folder: str, metric: str | None) -> None:
        self._folder, self._metric = folder, metric
        self._file = tf.io.gfile.join(folder, 'best.json')
        self._best: dict[str, Any] | None = None  # the contents of best.json

    def read(self, is_larger_better: bool | None, resumes: bool) -> None:
        """Read best.json. Delete it if it is from another run, has another metric, or its checkpoint is missing.

        Args:
            resumes: whether the training run continues from a checkpoint.
        """
        self._sign = 1 if is_larger_better else -1
        text = logdir.read_text(self._file)
        if not text or not self._metric:
            return
        try:
            best = json.loads(text)
        except ValueError as error:
            raise errors.TrainingError(f'{self._file} is corrupt ({error}). Delete it.') from error
        if resumes and best['metric'] == self._metric and is_complete(f'{self._folder}/ckpt-{best["step"]}'):
            self._best = best
            return
        logging.warning('%s has another metric, no checkpoint, or comes from an earlier run: the next evaluation '
                        'replaces it.', self._file)
        tf.io.gfile.remove(self._file)

    def improved(self, step: int, metrics: Mapping[str, float]) -> dict[str, Any] | None:
        """Return a new record if a step is the best so far, else None."""
        value = metrics.get(self._metric) if self._metric else None
        if value is None or not math.isfinite(value):
            return None
        if self._best and self._sign * value <= self._sign * self._best['value']:
            return None
        self._best = {'step': step, 'metric': self._metric, 'value': value}
        return self._best

    def write(self, record: dict[str, Any]) -> None:
        """Write best.json. The checkpoint of `record` must be complete already."""
        logdir.replace_text(self._file, json.dumps(record) + '\n')
