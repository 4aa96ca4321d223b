"""Keeping a second process out of a folder."""

import contextlib
import fcntl
import os
import socket

from lingpipe.training import errors


@contextlib.contextmanager
def hold(file, folder):
    """Inside this scope no other process, nor this one again, can hold the lock; it dies with its process.

    Only files of this machine, or of a file system mounted on it that can lock, are locked.

    Args:
        file: path of the lock; made where it is not there, and left there.
        folder: what is locked, as the user named it.

    Raises:
        TrainingError: when somebody else holds the lock.
    """
    if '://' in file:
        yield
        return
    with open(file, 'a+', encoding='utf-8') as stream:
        _lock(stream, folder)
        yield


def _lock(stream, folder):
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        stream.seek(0)
        raise errors.TrainingError(
            f'--logdir={folder} is in use by another training ({stream.read().strip()}). Wait for its end, stop it, or '
            'choose another --logdir; nothing was changed.') from error
    except OSError:
        return  # this file system has no locks
    with contextlib.suppress(OSError):  # the name of the holder is a courtesy, even when the disk is full
        os.truncate(stream.fileno(), 0)
        os.write(stream.fileno(), f'process {os.getpid()} on {socket.gethostname()}\n'.encode())
