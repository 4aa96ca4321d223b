"""A private network for one process of a cluster, in which TensorFlow's server has only loopback.

The server listens on every network that its process sees, whatever address the cluster gives it, and has no passwords.
So the process moves to a network namespace of Linux, and a relay listens in its place, only at the address of this
machine that the cluster names::

    network of the machine             relay       network of the process: loopback alone

    others ─────────> 10.0.0.3:2222 ═════════════> 127.0.0.1:20001      TensorFlow's server of worker 1
    10.0.0.2:2222 <─── dialler ─────────────────── 127.0.0.1:20000      stands for the chief
    10.0.0.4:2222 <─── dialler ─────────────────── 127.0.0.1:20002      stands for worker 2

The relay runs inside, with a socket that was opened outside before. The dialler stays outside, opens connections there,
and passes them to the relay. All processes number the tasks in the same way, because servers send addresses to each
other. Traffic on the machine's network is not encrypted: use a tunnel, such as WireGuard, for that.
"""

import contextlib
import ctypes
import fcntl
import functools
import os
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from lingpipe.cluster import child_process, cluster_config, ports

_NEW_USERS, _NEW_NETWORK = 0x10000000, 0x40000000  # CLONE_NEWUSER, CLONE_NEWNET of unshare(2)
_GET_FLAGS, _SET_FLAGS = 0x8913, 0x8914  # SIOCGIFFLAGS, SIOCSIFFLAGS of netdevice(7)
_UP, _RUNNING = 0x1, 0x40  # IFF_UP, IFF_RUNNING
_FLAGS_OF_INTERFACE = '16sh14x'  # struct ifreq
_FIRST_PORT = 20000
_SECONDS_TO_CONNECT = 5
_SECONDS_BETWEEN_TRIES = .01
_CHUNK_BYTES = 2**18
_CONNECTED, _REFUSED, _FAILED = b'+', b'-', b'?'
_LOOPBACK = '127.0.0.1'
_RESET = struct.pack('ii', 1, 0)  # closes a socket without the usual farewell


def enter_private_network() -> None:
    """Moves this process to a network of its own, without the networks of the machine; it cannot go back.

    Call it while the process has only one thread. Call `can_have_private_network` first, because a failure can leave
    the process without any network.

    Raises:
        OSError: the system does not allow it.
    """
    user, group = os.getuid(), os.getgid()
    try:
        _unshare(_NEW_NETWORK)  # for root: in a user namespace it could not read the files of other users
    except PermissionError:
        _unshare(_NEW_USERS | _NEW_NETWORK)
        _write('setgroups', 'deny')
        _write('uid_map', f'{user} {user} 1')
        _write('gid_map', f'{group} {group} 1')
    _set_up_loopback()


def _set_up_loopback():
    _flags_call(_SET_FLAGS, 'lo', _UP | _RUNNING)


def interfaces() -> list[str]:
    """Returns the names of the network interfaces that are up; tunnels may be there that nobody has set up."""
    return [name for _, name in socket.if_nameindex() if _is_up(name)]


def _is_up(name):
    if sys.platform != 'linux':
        return True
    try:
        return bool(_flags_call(_GET_FLAGS, name, 0) & _UP)
    except OSError:  # not a name that this network knows
        return True


def _flags_call(number, name, interface_flags):
    """Gets or sets the flags of a network interface; returns them."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack(_FLAGS_OF_INTERFACE, name.encode(), interface_flags)
        return struct.unpack(_FLAGS_OF_INTERFACE, fcntl.ioctl(any_socket, number, request))[1]


def can_have_private_network() -> bool:
    """Returns whether `enter_private_network` would succeed: a child process tries it."""
    if sys.platform != 'linux':
        return False
    child = os.fork()
    if child == 0:
        try:
            enter_private_network()
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


def enter(config: cluster_config.ClusterConfig) -> cluster_config.ClusterConfig:
    """Moves this process to a network of its own, with a relay to the other processes of its cluster.

    Call it before TensorFlow is imported, while the process has only one thread. Afterwards the process reaches only
    the hosts of the cluster: no `gs://`, no data to download.

    Args:
        config: `ClusterConfig` with the addresses outside.

    Returns:
        The `ClusterConfig` inside.

    Raises:
        ValueError: the system allows no such network, or this machine does not have the address of the task.
        RuntimeError: the port of this task stays taken.
    """
    if not can_have_private_network():
        raise ValueError(
            '--cluster_network=private: this system allows no network of its own (user namespaces are off, or this is '
            'not Linux). Close the ports in a firewall, and give --cluster_network=all.')
    listener = _listener(config)
    tasks = config.tasks(*config.jobs)
    others = {place: config.jobs[job][index] for place, (job, index) in enumerate(tasks)
              if (job, index) != (config.task_type, config.task_index)}
    lines = {place: socket.socketpair() for place in others}  # from the relay to the dialler
    _fork(lambda: _dial({place: (ends[1], others[place]) for place, ends in lines.items()}))
    enter_private_network()
    doors = {place: socket.create_server((_LOOPBACK, _FIRST_PORT + place)) for place in others}
    own_port = _FIRST_PORT + tasks.index((config.task_type, config.task_index))
    _fork(lambda: _relay(listener, _hosts_of(config), own_port, [(doors[place], lines[place][0]) for place in others]))
    for each in (listener, *doors.values(), *(end for ends in lines.values() for end in ends)):
        each.close()
    places = iter(range(_FIRST_PORT, _FIRST_PORT + len(tasks)))
    inside = {job: [f'{_LOOPBACK}:{next(places)}' for _ in addresses] for job, addresses in config.jobs.items()}
    _say(f'{config.task} can be reached only at {config.address}, and only by the hosts of its cluster. Messages below '
         f'have the addresses of its own network: {_pairs_in_words(inside, config.jobs)}.')
    return config._replace(jobs=inside)


def _pairs_in_words(inside, outside):
    return ', '.join(f'{job}:{index} {here} is {there}' for job in inside
                     for index, (here, there) in enumerate(zip(inside[job], outside[job])))


def _say(sentence):
    print(sentence, file=sys.stderr, flush=True)


def _hosts_of(config):
    return {cluster_config.host_and_port(address)[0] for addresses in config.jobs.values() for address in addresses}


def _listener(config: cluster_config.ClusterConfig) -> socket.socket:
    """Returns a socket that listens only at the address of this task, in the network of the machine."""
    host, port = cluster_config.host_and_port(config.address)
    try:
        family, _, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        if not any(socket.inet_pton(family, str(place[0]))):
            raise ValueError(f'--cluster_network=private: {config.address} of {config.task} means every network of '
                             'this machine. Give the address of one in the cluster of every process.')
        return ports.once_free(config, lambda: socket.create_server(place[:2], family=family))
    except OSError as error:
        raise ValueError(
            f'--cluster_network=private: {config.task} cannot listen at {config.address} ({error.strerror}). Give an '
            'address of this machine (ip address) in the cluster of every process.'
        ) from error


def _fork(work: Callable[[], Any]) -> None:
    """Runs a function in a child that ends only with this process: a clean shutdown still needs the relay."""
    parent = os.getpid()
    if os.fork() == 0:
        try:
            child_process.die_with(parent)
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)
            work()
        finally:
            os._exit(1)


def _dial(lines: dict[int, tuple[socket.socket, str]]) -> None:
    _serve_all(functools.partial(_dial_for, line, address) for line, address in lines.values())


def _dial_for(line, address):
    """Opens a connection whenever the relay asks for one, and passes it to the relay."""
    while line.recv(1):
        try:
            place = cluster_config.host_and_port(address)
            with socket.create_connection(place, timeout=_SECONDS_TO_CONNECT) as found:
                found.settimeout(None)
                socket.send_fds(line, [_CONNECTED], [found.fileno()])
        except ConnectionRefusedError:
            line.send(_REFUSED)
        except OSError:
            line.send(_FAILED)


def _relay(listener, hosts, own_port, doors):
    def from_others():
        known = _Hosts(hosts)
        for outer, address in _accepted(listener):
            if known.has(address[0]):
                _start(_join, outer, lambda: socket.create_connection((_LOOPBACK, own_port)))
            else:
                _say(f'Refused a connection from {address[0]}, which is not a host of the cluster.')
                outer.close()

    def to_another(door, line):
        for inner, _ in _accepted(door):
            _join(inner, lambda: _dialled(line))

    _serve_all([from_others, *(functools.partial(to_another, door, line) for door, line in doors)])


class _Hosts:
    """The addresses of some hosts; names are looked up again later if they are not known yet."""

    def __init__(self, names):
        self._names, self._addresses = names, set()

    def has(self, address: str) -> bool:
        """Returns whether an address belongs to one of the hosts."""
        address = address.removeprefix('::ffff:')
        if address not in self._addresses:
            for name in self._names:
                with contextlib.suppress(OSError):
                    self._addresses |= {str(found[4][0]) for found in socket.getaddrinfo(name, None)}
        return address in self._addresses


def _accepted(listener):
    while True:
        try:
            yield listener.accept()
        except OSError:  # a lost connection, or no file descriptor is free now
            time.sleep(_SECONDS_BETWEEN_TRIES)


def _dialled(line):
    line.send(_CONNECTED)
    answer, (*found,), _, _ = socket.recv_fds(line, 1, 1)
    if answer != _CONNECTED or not found:  # without a free file descriptor none arrives
        raise ConnectionRefusedError if answer == _REFUSED else ConnectionError
    return socket.socket(fileno=found[0])


def _join(one, other_of):
    """Joins a connection with another, which `other_of` opens; without it, closes or resets the first one.

    A program here so tells a process that has ended (closed) from a host that cannot be reached (reset).
    """
    try:
        other = other_of()
    except OSError as error:
        if not isinstance(error, ConnectionRefusedError):
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        one.close()
        return
    for each in (one, other):
        each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    both_ended = threading.Barrier(2, action=lambda: (one.close(), other.close()))
    _start(_pump, one, other, both_ended)
    _start(_pump, other, one, both_ended)


def _pump(source, target, both_ended):
    """Forwards bytes until the source ends; the opposite direction may continue."""
    try:
        while data := source.recv(_CHUNK_BYTES):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:  # one of them is lost: then so is the other
        for each in (source, target):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
    both_ended.wait()


def _start(function, *arguments):
    thread = threading.Thread(target=function, args=arguments, name='relay', daemon=True)
    thread.start()
    return thread


def _serve_all(functions: Iterable[Callable[[], Any]]) -> None:
    for thread in [_start(function) for function in functions]:
        thread.join()
