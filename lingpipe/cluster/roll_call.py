"""Which workers of --cluster=multi_worker train together: worker 0 calls all before TensorFlow connects them.

::

    worker 0                               worker 1
    connects to its address  ───────────>  listens there
                             <───────────  'lingpipe worker:1'
    waits for the others, up to a limit
                             ───────────>  {"members": [0, 1]}
                                           closes its port, which TensorFlow's server takes

TensorFlow's all-reduce needs all workers of its list, and no process can change its list. So when a worker is lost, all
end, restart, and answer the next call. A worker that is too late for a call listens until the next one.
"""

import contextlib
import json
import select
import socket
import threading
import time
from collections.abc import Callable, Iterable

from lingpipe.cluster import cluster_config, ports, watchdog

_GREETING = 'lingpipe '
_SECONDS_TO_ANSWER = 1.
_SECONDS_BETWEEN_LOOKS = .2
_LONGEST_LINE = 2**16


def answer(config: cluster_config.ClusterConfig) -> cluster_config.ClusterConfig:
    """Waits for the call of worker 0, at the address of this worker.

    Args:
        config: `ClusterConfig` of a worker, with all workers.

    Returns:
        `ClusterConfig` of the workers that train together, with the new index of this worker.

    Raises:
        RuntimeError: the port stays taken.
    """
    callers: list[socket.socket] = []
    with ports.listening(config) as listener:
        try:
            while True:
                members = _next_members(listener, callers, config)
                if config.task_index in members:
                    return among(config, members)
        finally:
            for caller in callers:
                caller.close()


def _next_members(listener, callers, config):
    """Returns the numbers of the members that a caller sends; [] after anything else that arrives first."""
    members: list[int] = []
    for ready in select.select([listener, *callers], [], [])[0]:
        if ready is not listener:
            callers.remove(ready)
            with ready:
                members = _members(_line(ready), config) or members
            continue
        caller, _ = listener.accept()
        if _greet(caller, config.task):
            callers.append(caller)
        else:
            caller.close()
    return members


def among(config: cluster_config.ClusterConfig, members: Iterable[int]) -> cluster_config.ClusterConfig:
    """Returns the `ClusterConfig` of some workers, which are numbered again from 0.

    Args:
        config: `ClusterConfig` of one of them, with all workers.
        members: their numbers among all workers, in order.
    """
    members = list(members)
    addresses = [config.jobs['worker'][index] for index in members]
    return cluster_config.ClusterConfig({'worker': addresses}, 'worker', members.index(config.task_index))


def _greet(caller, task):
    caller.settimeout(_SECONDS_TO_ANSWER)
    with contextlib.suppress(OSError):
        caller.sendall(f'{_GREETING}{task}\n'.encode())
        return True
    return False


def _members(line, config):
    """Returns the numbers of the members; [] if the caller has closed the connection, or sent something else."""
    try:
        members = json.loads(line)['members']
        is_known = all(type(index) is int and 0 <= index < config.num_workers for index in members)
    except (ValueError, LookupError, TypeError, RecursionError):
        return []
    return members if is_known and members == sorted(set(members)) else []


def _line(connection):
    """Returns a line from a connection, '' if it does not arrive in time as a whole."""
    line, end = b'', time.monotonic() + _SECONDS_TO_ANSWER
    try:
        while not line.endswith(b'\n') and len(line) < _LONGEST_LINE:
            connection.settimeout(max(.001, end - time.monotonic()))
            received = connection.recv(_LONGEST_LINE - len(line))
            if not received or time.monotonic() > end:
                return ''
            line += received
    except OSError:
        return ''
    return line.decode(errors='replace')


class Caller:
    """Worker 0, which calls the others and decides which of them train.

    Args:
        config: `ClusterConfig` of worker 0, with all workers.
        can_share: function of a number of workers that returns whether a batch can be divided equally among them.

    Attributes:
        members: numbers of the workers that train together.
        silent: names and addresses of the workers that did not answer the call.
    """

    def __init__(self, config: cluster_config.ClusterConfig, can_share: Callable[[int], bool]) -> None:
        self._config, self._can_share = config, can_share
        self._connections: dict[int, socket.socket] = {}
        self._is_back = threading.Event()
        self.members = list(range(config.num_workers))
        self.silent: list[str] = []

    def call(self, patience: float, left_out: Iterable[int] = ()) -> cluster_config.ClusterConfig:
        """Waits for the others, and leaves out those that do not answer.

        Args:
            patience: seconds after which the workers that answered start without the others.
            left_out: numbers of workers that are called, but not waited for.

        Returns:
            `ClusterConfig` of the workers that train together.

        Raises:
            ConnectionError: workers are missing for more than `watchdog.SECONDS_TO_CONNECT`.
        """
        begin = time.monotonic()
        awaited = set(self._others).difference(left_out)
        while True:
            self._connect()
            waited = time.monotonic() - begin
            members = self._largest({0, *self._connections})
            if members and (awaited.issubset(self._connections) or waited >= patience):
                break
            if waited >= watchdog.SECONDS_TO_CONNECT:
                raise watchdog.missing_workers(', '.join(self.missing()), self._config.num_workers, waited)
            time.sleep(_SECONDS_BETWEEN_LOOKS)
        self.silent = self.missing()
        self._start(members)
        return among(self._config, members)

    def missing(self) -> list[str]:
        """Returns names and addresses of the workers that have not answered the call so far."""
        return self._named(index for index in self._others if index not in self._connections)

    def absent(self) -> list[str]:
        """Returns names and addresses of the workers that are left out."""
        return self._named(index for index in self._others if index not in self.members)

    def is_worker_back(self) -> bool:
        """Returns whether more workers than now can train together."""
        return self._is_back.is_set()

    def watch(self) -> None:
        """Starts a thread that calls the workers that are left out."""
        if len(self.members) < self._config.num_workers:
            threading.Thread(target=self._watch, name='roll call', daemon=True).start()

    def _watch(self):
        while True:
            answering = [index for index in self._others if index not in self.members and self._answers(index)]
            if len(self._largest({*self.members, *answering})) > len(self.members):
                return self._is_back.set()
            time.sleep(1)

    def _answers(self, index):
        connection = self._connected(index)
        if connection:
            connection.close()
        return connection is not None

    @property
    def _others(self):
        return range(1, self._config.num_workers)

    def _largest(self, present):
        """Returns the numbers of as many present workers as can share a batch, worker 0 first."""
        possible = [count for count in range(1, len(present) + 1) if self._can_share(count)]
        return sorted(present)[:max(possible, default=0)]

    def _connect(self):
        for index in self._others:
            connection = self._connections.get(index)
            if connection and select.select([connection], [], [], 0)[0]:  # closed: workers send nothing more
                self._connections.pop(index).close()
                connection = None
            if connection is None and (connection := self._connected(index)):
                self._connections[index] = connection

    def _connected(self, index):
        """Returns a connection to a worker that waits for a call, or None."""
        place = cluster_config.host_and_port(self._config.jobs['worker'][index])
        try:
            connection = socket.create_connection(place, timeout=_SECONDS_TO_ANSWER)
        except OSError:
            return None
        if _line(connection) == f'{_GREETING}worker:{index}\n':
            return connection
        connection.close()
        return None

    def _start(self, members):
        self.members = members
        line = json.dumps({'members': members}) + '\n'
        for index, connection in self._connections.items():
            with connection, contextlib.suppress(OSError):
                if index in members:
                    connection.sendall(line.encode())
        self._connections = {}

    def _named(self, indices):
        return [f'worker:{index} ({self._config.jobs["worker"][index]})' for index in indices]
