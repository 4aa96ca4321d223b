"""The checkpoints of a folder, and which of them are complete.

::

    train/checkpoint                    list of the complete checkpoints: ckpt-8 counts once it is named here
    train/ckpt-8.index                  names and shapes, see `checkpoint_contents`
    train/ckpt-8.data-00000-of-00001    values
    train/unfinished                    the checkpoint that is being written: ckpt-12
    train/ckpt-12_temp/                 files of a process that was killed while it wrote
"""

import contextlib
import json
import os
import re
from collections.abc import Callable

import tensorflow as tf
from absl import logging

from lingpipe.training import errors, logdir

_INDEX = re.compile(r'ckpt-\d+\.index')
_UNFINISHED = re.compile(r'ckpt-\d+_temp|checkpoint\.new|seen_by_all_[0-9a-f]{32}')
_NAME = re.compile(r'.*-\d{1,18}')  # of a checkpoint in the list, which ends in its step
_MARK = 'unfinished'
_MARKED = re.compile(rb'(ckpt-\d{1,18})\n')  # without its end it may be half written


def read_newest(directory: str, read: Callable) -> tuple[str | None, list]:
    """Read the newest complete checkpoint of a folder; warn of the corrupt ones, and change nothing.

    Only reading shows whether a file is corrupt: TensorFlow stores a checksum of every value. So `read` is a function
    of a path that reads a checkpoint or raises `DamagedCheckpointError`.

    Returns:
        Pair of the path that was read, None if there are no checkpoints, and the list of the newer, corrupt paths.

    Raises:
        TrainingError: all are corrupt, or as `read` and `complete`.
    """
    damaged = []
    for path in complete(directory):
        try:
            read(path)
        except errors.TrainingError as error:
            if not files_of(path):  # training has deleted it meanwhile, for a newer one
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
    """Return the paths of the complete checkpoints of a folder, the newest first.

    A listed checkpoint without files does not count; nor does any but the newest without an index: its deletion has
    begun.

    Raises:
        TrainingError: there are checkpoints, but the list of the complete ones is missing or corrupt.
    """
    listed, names, unfinished = _at_one_moment(directory)
    written = {name.removesuffix('.index') for name in names if _INDEX.fullmatch(name)} - {unfinished}
    found = [path for path in listed if f'{os.path.basename(path)}.index' in names]
    if listed and listed[-1] not in found and files_of(listed[-1]):
        found.append(listed[-1])  # corrupt, and named as such when it is read
    if written and not found:
        latest = max(written, key=step_of)
        raise errors.TrainingError(
            f"The file 'checkpoint' in {directory}, which names the complete checkpoints, is missing or damaged. To "
            f'resume from {latest} write model_checkpoint_path: "{latest}" into it, or choose another '
            '--logdir; nothing was changed.')
    return found[::-1]


def _at_one_moment(directory: str | os.PathLike[str]) -> tuple[list[str], set[str], str]:
    """Return the list, the names of the files, and the checkpoint being written, from a moment when they agree."""
    while True:
        listed, names, unfinished = _listed(directory), set(_names_in(directory)), _unfinished(directory)
        if _listed(directory) == listed:
            return listed, names, unfinished


def _listed(directory: str | os.PathLike[str]) -> list[str]:
    """Return the paths in the list of checkpoints; none if the list is missing or corrupt."""
    try:
        state = tf.train.get_checkpoint_state(str(directory))
    except (ValueError, tf.errors.OpError):
        return []
    paths = [*state.all_model_checkpoint_paths, state.model_checkpoint_path] if state else []
    names = dict.fromkeys(map(os.path.basename, reversed(paths)))  # the newest is named twice, and counts as the last
    return [tf.io.gfile.join(str(directory), name) for name in reversed(names) if _NAME.fullmatch(name)]


def leave_out(directory: str, paths: list[str]) -> None:
    """Remove checkpoints from the list of the complete ones; their files stay."""
    listed = _listed(directory)
    kept = _without(listed, paths)
    if kept != listed:
        _write_list(directory, kept)


def add(path: str) -> None:
    """Append a checkpoint to the list of its folder, as the newest complete one."""
    directory = os.path.dirname(path)
    _write_list(directory, [*_without(_listed(directory), [path]), path])


def delete_old(directory: str, max_to_keep: int) -> None:
    """Delete all but the newest `max_to_keep` of the listed checkpoints, the index first; take them off the list."""
    listed = _listed(directory)
    for path in listed[:-max_to_keep]:
        delete(path)
    if len(listed) > max_to_keep:
        _write_list(directory, listed[-max_to_keep:])


def delete(path: str) -> None:
    """Delete the files of a checkpoint, the index first."""
    for name in sorted(files_of(path), reverse=True):
        with contextlib.suppress(tf.errors.NotFoundError):
            tf.io.gfile.remove(tf.io.gfile.join(os.path.dirname(path), name))


def _without(listed: list[str], paths: list[str]) -> list[str]:
    names = {os.path.basename(path) for path in paths}
    return [path for path in listed if os.path.basename(path) not in names]


def _write_list(directory: str, paths: list[str]) -> None:
    """Write the list in TensorFlow's form, the newest last; times are left out, because clocks are set back."""
    names = [json.dumps(os.path.basename(path)) for path in paths]
    lines = [f'model_checkpoint_path: {name}\n' for name in names[-1:]]
    lines += [f'all_model_checkpoint_paths: {name}\n' for name in names]
    logdir.replace_text(tf.io.gfile.join(str(directory), 'checkpoint'), ''.join(lines))


def mark_unfinished(path: str) -> None:
    """Note that a checkpoint is being written: until it is in the list, its files do not count."""
    folder, name = os.path.split(path)
    tf.io.gfile.makedirs(folder)
    with tf.io.gfile.GFile(tf.io.gfile.join(folder, _MARK), 'w') as file:
        file.write(f'{name}\n')


def mark_finished(directory: str) -> None:
    """Note that no checkpoint is being written."""
    with contextlib.suppress(tf.errors.NotFoundError):
        tf.io.gfile.remove(tf.io.gfile.join(directory, _MARK))


def remove_unfinished(directory: str) -> None:
    """Remove what a process left that was killed, or whose disk was full, while writing: files like a checkpoint's.

    Files with the final names of a checkpoint are removed only if a process has noted that it writes them: others that
    are not in the list are corrupt, or somebody put them there.
    """
    for name in _names_in(directory):
        if _UNFINISHED.fullmatch(name.rstrip('/')):
            _remove(tf.io.gfile.join(directory, name))
    name = _unfinished(directory)
    if name and name not in map(os.path.basename, _listed(directory)):
        delete(tf.io.gfile.join(directory, name))
    mark_finished(directory)


def _remove(path: str) -> None:
    if tf.io.gfile.isdir(path):
        tf.io.gfile.rmtree(path)
    else:
        tf.io.gfile.remove(path)


def _unfinished(directory: str | os.PathLike[str]) -> str:
    """Return the name of the checkpoint that a process has noted as being written, or ''."""
    try:
        with tf.io.gfile.GFile(tf.io.gfile.join(str(directory), _MARK), 'rb') as file:
            match = _MARKED.fullmatch(file.read())
    except tf.errors.NotFoundError:
        return ''
    return match[1].decode() if match else ''


def files_of(path: str) -> list[str]:
    """Return the names of the files of a checkpoint, some of which may be missing."""
    folder, name = os.path.split(str(path))
    return [file for file in _names_in(folder or '.') if file.startswith(f'{name}.')]


def _names_in(folder: str | os.PathLike[str]) -> list[str]:
    try:
        return tf.io.gfile.listdir(str(folder))
    except tf.errors.NotFoundError:
        return []


def step_of(path: str) -> int:
    """Return the step in a checkpoint's name."""
    return int(str(path).rsplit('-', 1)[1])
