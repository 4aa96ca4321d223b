"""Checks whether all machines of a training run see a folder: then each writes and reads its share of a checkpoint.

::

    all see it      chief    ──> ckpt-7.data-00000-of-00002          else     chief <── worker 0
                    worker 0 ──> ckpt-7.data-00001-of-00002                     └─────> ckpt-7.data-00000-of-00001
                    both     ──> ckpt-7.index
                    chief    ──> list of checkpoints
"""

import os
import uuid
from collections.abc import Iterable

import tensorflow as tf

from lingpipe.training import background_writer

# Errors of a machine that has no such folder, or may not read it.
_NOT_SEEN = (tf.errors.NotFoundError, tf.errors.PermissionDeniedError, tf.errors.FailedPreconditionError,
             tf.errors.UnimplementedError, tf.errors.InvalidArgumentError)


def checkpoint_options(directory: str, devices: Iterable[str]) -> tf.train.CheckpointOptions:
    """Returns the options by which each machine handles its share of a checkpoint, or this machine all of it.

    Args:
        directory: folder of the checkpoints, which exists.
        devices: names of the devices that hold the state.
    """
    hosts = {background_writer.host_of(device) for device in devices}
    each_its_share = len(hosts) > 1 and _is_seen_by(hosts, directory)
    return tf.train.CheckpointOptions(experimental_io_device=None if each_its_share else 'CPU:0')


def _is_seen_by(hosts, directory):
    """Asks each machine for a random text in this folder, because it may have another folder of the same name."""
    token = uuid.uuid4().hex
    path = os.path.join(str(directory), f'seen_by_all_{token}')
    with tf.io.gfile.GFile(path, 'w') as file:
        file.write(token)
    try:
        return all(_read_on(host, path) == token.encode() for host in sorted(hosts))
    finally:
        tf.io.gfile.remove(path)


def _read_on(host, path):
    try:
        with tf.device(host):
            return tf.io.read_file(path).numpy()
    except _NOT_SEEN:
        return None
