"""Which checkpoints a folder holds, and reading the newest of them that is whole."""

import os
import re

import tensorflow as tf
from absl import logging

from lingpipe.training import errors, logdir

_INDEX = re.compile(r'ckpt-\d+\.index')


def read_newest(directory, read):
    """Reads the newest checkpoint that is whole; says which are not, and changes nothing in the folder.

    Whether a file is whole shows when it is read: TensorFlow keeps a checksum of every value.

    Args:
        directory: folder of checkpoints.
        read: function of a path that reads a checkpoint or raises `DamagedCheckpointError`.

    Returns:
        Pair of the path of what was read, None where there are no checkpoints, and the list of the paths of newer ones.

    Raises:
        TrainingError: when none is whole, or as `read` and `complete` do.
    """
    damaged = []
    for path in complete(directory):
        try:
            read(path)
        except errors.DamagedCheckpointError as error:
            damaged.append(error)
            continue
        for error in damaged:
            logging.warning('Checkpoint %s cannot be read (%s). The newest that can, %s, is taken; nothing was deleted.',
                            error.path, error.reason, path)
        return path, [error.path for error in damaged]
    if damaged:
        raise errors.TrainingError(
            f'None of the {len(damaged)} checkpoints in {directory} can be read; the newest is {damaged[0].path} '
            f'({damaged[0].reason}). Choose another --logdir; nothing was changed.')
    return None, []


def complete(directory):
    """Returns the paths of the complete checkpoints of a folder, the newest first.

    A checkpoint whose files somebody has deleted does not count.

    Raises:
        TrainingError: when there are checkpoints, but the list of the complete ones is missing or damaged, or names others.
    """
    found = [path for path in _listed(directory) if files_of(path)]
    present = sorted((name.removesuffix('.index') for name in _names_in(directory) if _INDEX.fullmatch(name)), key=step_of)
    if present and not found:
        raise errors.TrainingError(
            f"The file 'checkpoint' in {directory}, which names the complete checkpoints, is missing or damaged. To go "
            f'on from {present[-1]} write model_checkpoint_path: "{present[-1]}" into it, or choose another --logdir; '
            'nothing was changed.')
    return list(dict.fromkeys(reversed(found)))


def _listed(directory):
    try:
        state = tf.train.get_checkpoint_state(str(directory))
    except ValueError:
        return []
    listed = [*state.all_model_checkpoint_paths, state.model_checkpoint_path] if state else []
    for path in listed:
        if os.path.abspath(os.path.dirname(path)) != os.path.abspath(str(directory)):  # training would delete it as too old
            raise errors.TrainingError(
                f"The file 'checkpoint' in {directory} names {path}, which lies elsewhere: LingPipe never writes that. Delete the "
                'line, or choose another --logdir; nothing was changed.')
    return listed


def leave_out(directory, paths):
    """Takes checkpoints, but never the only ones, out of the list of the complete ones; their files stay.

    Args:
        directory: folder of checkpoints.
        paths: list of paths.
    """
    state = tf.train.get_checkpoint_state(str(directory)) if paths else None
    if state is None:
        return
    times = state.all_model_checkpoint_timestamps or [state.last_preserved_timestamp] * len(state.all_model_checkpoint_paths)
    kept = {path: time for path, time in zip(state.all_model_checkpoint_paths, times) if path not in paths}
    if kept:
        state.model_checkpoint_path = os.path.basename(list(kept)[-1])
        state.all_model_checkpoint_paths[:] = map(os.path.basename, kept)
        state.all_model_checkpoint_timestamps[:] = kept.values()
        logdir.replace_text(tf.io.gfile.join(str(directory), 'checkpoint'), str(state))


def files_of(path):
    """Returns the names of the files of a checkpoint, some of which may be missing."""
    folder, name = os.path.split(str(path))
    return [file for file in _names_in(folder or '.') if file.startswith(f'{name}.')]


def _names_in(folder):
    try:
        return tf.io.gfile.listdir(str(folder))
    except tf.errors.NotFoundError:
        return []


def step_of(path):
    """Returns the step in a checkpoint's name."""
    return int(str(path).rsplit('-', 1)[1])
