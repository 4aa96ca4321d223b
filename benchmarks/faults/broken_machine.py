"""A disk that can be slow or full, and a network that can be cut: what happens to a machine that processes train on.

Linux only, as root: the disk is a file with a file system of its own, mounted in a namespace of this process.
"""

import errno
import os
import pathlib
import subprocess
import sys
import time

from benchmarks.support import common

_MIB = 2**20
_DISK_MIB = 128
_IS_ALONE = 'LINGPIPE_BROKEN_MACHINE'


def run_where_disks_can_be_mounted(module, arguments):
    """Runs a benchmark again, where what it mounts is seen by nobody else.

    Args:
        module: name of the benchmark's module.
        arguments: its command line.

    Returns:
        Whether this process is the one that should do the work.
    """
    if os.environ.get(_IS_ALONE):
        return True
    command = ['unshare', '--mount', sys.executable, '-m', module, *arguments]
    done = subprocess.run(command, env={**os.environ, _IS_ALONE: '1'}, cwd=common.ROOT, check=False)
    if done.returncode:
        sys.exit(done.returncode)
    return False


class Disk:
    """A small disk for a log directory.

    Args:
        folder: where it is to be mounted; it must be empty.
    """

    def __init__(self, folder):
        self._folder = pathlib.Path(folder)
        self._image = self._folder.with_suffix('.image')
        self._filler = self._folder / 'filler'

    def __enter__(self):
        self._folder.mkdir()
        with open(self._image, 'wb') as image:
            image.truncate(_DISK_MIB * _MIB)
        _run('mkfs.ext4', '-q', '-m', '0', self._image)
        _run('mount', '-o', 'loop', self._image, self._folder)
        return self

    def __exit__(self, *unused):
        _run('umount', '--lazy', self._folder)

    def delay_writes(self, seconds):
        """Lets all that write wait; they cannot be killed meanwhile."""
        _run('fsfreeze', '--freeze', self._folder)
        try:
            time.sleep(seconds)
        finally:
            _run('fsfreeze', '--unfreeze', self._folder)

    def fill(self):
        """Takes all the space that is left."""
        with open(self._filler, 'wb', buffering=0) as filler:
            for num_bytes in (_MIB, 4096, 1):
                try:
                    while True:
                        filler.write(bytes(num_bytes))
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise

    def free(self):
        """Gives the space back, as a person would."""
        self._filler.unlink(missing_ok=True)


def cut_network(process_id, seconds):
    """Lets no packet through between the processes that share a process's network.

    Args:
        process_id: number of the process.
        seconds: how long. Connections outlive it, if nobody gives them up.
    """
    loopback = ['nsenter', '--target', str(process_id), '--net', 'ip', 'link', 'set', 'lo']
    _run(*loopback, 'down')
    try:
        time.sleep(seconds)
    finally:
        _run(*loopback, 'up')


def _run(*words):
    subprocess.run([str(word) for word in words], check=True)
