"""Faults of the machine that processes train on: a disk that is slow or full, a network that is cut.

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


def enter_own_mounts(module, arguments):
    """Restarts this process, unless it was restarted, so that nobody else sees what it mounts.

    Args:
        module: name of the benchmark's module.
        arguments: its command line.
    """
    if os.environ.get(_IS_ALONE):
        return
    if os.geteuid():
        sys.exit('Faults of disks and networks need root. Run as root, or leave these kinds out.')
    command = ['unshare', '--mount', sys.executable, '-m', module, *arguments]
    os.chdir(common.ROOT)
    os.execvpe(command[0], command, {**os.environ, _IS_ALONE: '1'})


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
        seconds: how long. Connections survive it, if nothing closes them.

    Raises:
        ValueError: the process shares the network of this one.
    """
    if os.readlink(f'/proc/{process_id}/ns/net') == os.readlink('/proc/self/ns/net'):
        raise ValueError(f'Process {process_id} has no network of its own: its cut would be that of the whole machine. '
                         'Start its cluster with --isolated.')
    loopback = ['nsenter', '--target', str(process_id), '--net', 'ip', 'link', 'set', 'lo']
    _run(*loopback, 'down')
    try:
        time.sleep(seconds)
    finally:
        _run(*loopback, 'up')


def _run(*words):
    subprocess.run([str(word) for word in words], check=True)
