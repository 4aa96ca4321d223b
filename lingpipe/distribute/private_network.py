"""A network of its own for a process and its children, in which there is nothing but loopback (Linux).

TensorFlow's servers listen on every network of the machine, whatever address they are given, so this is what keeps others away
from them::

    machine   eth0 ──── others              here   lo ──── this process, its children
              lo   ──── other processes            (no other interface exists)
"""

import ctypes
import fcntl
import os
import socket
import struct
import sys

_NEW_USERS, _NEW_NETWORK = 0x10000000, 0x40000000  # CLONE_NEWUSER, CLONE_NEWNET of unshare(2)
_SET_FLAGS = 0x8914  # SIOCSIFFLAGS of netdevice(7)
_UP_AND_RUNNING = 0x1 | 0x40  # IFF_UP | IFF_RUNNING


def enter():
    """Leaves the networks of the machine for good.

    Call it while the process has one thread only, and ask `is_possible` before: a failure can leave the process with no network
    at all.

    Raises:
        OSError: the system does not allow it.
    """
    user, group = os.getuid(), os.getgid()
    try:
        _unshare(_NEW_NETWORK)  # for root: without users of its own, who could not read the files of others
    except PermissionError:
        _unshare(_NEW_USERS | _NEW_NETWORK)
        _write('setgroups', 'deny')
        _write('uid_map', f'{user} {user} 1')
        _write('gid_map', f'{group} {group} 1')
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SET_FLAGS, struct.pack('16sh14x', b'lo', _UP_AND_RUNNING))


def is_possible():
    """Says whether `enter` would succeed: a child process tries it."""
    if sys.platform != 'linux':
        return False
    child = os.fork()
    if child == 0:
        try:
            enter()
        except OSError:
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1] == 0


def _unshare(flags):
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(flags):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _write(name, text):
    with open(f'/proc/self/{name}', 'w', encoding='ascii') as file:
        file.write(text)
