"""Which workers of --cluster=multi_worker start together: worker 0 calls the others before TensorFlow connects them.

::

    worker 0                               worker 1
    connects to its address  ───────────>  listens there
                             <───────────  'lingpipe worker:1'
    waits for the others, but not too long
                             ───────────>  {"members": [0, 1]}
                                           closes its port, which TensorFlow's server takes

TensorFlow's all-reduce needs all workers of its list, and no process can change to another list. So all workers end
when one is lost, restart, and answer the next call. One that comes too late listens until then.
"""

import contextlib
import json
import select
import socket
import threading
import time
from collections.abc import Callable, Iterable

from lingpipe.cluster import cluster_config, server, watchdog

_GREETING = 'lingpipe '
_SECONDS_TO_ANSWER = 1.
_SECONDS_BETWEEN_LOOKS = .2
_LONGEST_LINE = 2**16


def answer(config: cluster_config.ClusterConfig) -> cluster_config.ClusterConfig:
    """Waits for the call of worker 0, at the address of this worker.

    Args:
        config: `ClusterConfig` of a worker, with all workers.

    Returns:
        `ClusterConfig` of those that start together, in which this worker has its place among them.

    Raises:
        RuntimeError: the port is taken.
    """
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(server.listening(config))
        callers: list[socket.socket] = []
        while True:
            for ready in select.select([listener, *callers], [], [])[0]:
                if ready is listener:
                    caller = stack.enter_context(listener.accept()[0])
                    callers += [caller] if _greet(caller, config.task) else []
                    continue
                callers.remove(ready)
                members = _members(_line(ready), config)
                if config.task_index in members:
                    return among(config, members)


def among(config: cluster_config.ClusterConfig, members: Iterable[int]) -> cluster_config.ClusterConfig:
    """Returns the `ClusterConfig` of some workers, in which each has the place that it has among them.

    Args:
        config: `ClusterConfig` of one of them, with all workers.
        members: their numbers, in order.
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
    """Returns the numbers of the members; [] where the caller has gone, or sent something else."""
    try:
        members = json.loads(line)['members']
        is_known = all(type(index) is int and 0 <= index < config.num_workers for index in members)
    except (ValueError, LookupError, TypeError, RecursionError):
        return []
    return members if is_known and members == sorted(set(members)) else []


def _line(connection):
    """Returns a line that is sent, '' where there is none in time."""
    connection.settimeout(_SECONDS_TO_ANSWER)
    try:
        with connection.makefile('rb') as file:
            return file.readline(_LONGEST_LINE).decode(errors='replace')
    except OSError:
        return ''


class Caller:
    """Worker 0, which calls the others and decides who starts.

    Args:
        config: `ClusterConfig` of worker 0, with all workers.
        can_share: function of a number of workers, whether each of them can have as many rows of a batch.

    Attributes:
        members: numbers of the workers that start together.
        silent: names and addresses of those that did not answer the call.
    """

    def __init__(self, config: cluster_config.ClusterConfig, can_share: Callable[[int], bool]) -> None:
        self._config, self._can_share = config, can_share
        self._connections: dict[int, socket.socket] = {}
        self._is_back = threading.Event()
        self.members = list(range(config.num_workers))
        self.silent: list[str] = []

    def call(self, patience: float, left_out: Iterable[int] = ()) -> cluster_config.ClusterConfig:
        """Waits for the others, and leaves out those that do not come.

        Args:
            patience: seconds after which those that are there start alone.
            left_out: numbers of workers that are called, but not waited for.

        Returns:
            `ClusterConfig` of those that start together.

        Raises:
            ConnectionError: others are missing for so long that something must be wrong.
        """
        begin = time.monotonic()
        awaited = set(self._others).difference(left_out)
        while True:
            self._connect()
            waited = time.monotonic() - begin
            members = self._largest({0, *self._connections})
            silent = [index for index in self._others if index not in self._connections]
            if members and (awaited.issubset(self._connections) or waited >= patience):
                break
            if waited >= watchdog.SECONDS_TO_CONNECT:
                raise ConnectionError(
                    f'After {waited:.0f} s there is no answer from {", ".join(self._named(silent))}, of '
                    f'{self._config.num_workers} workers. Check that each is running the same command with its own '
                    'task, that the addresses are right, and that no firewall stands between.')
            time.sleep(_SECONDS_BETWEEN_LOOKS)
        self.silent = self._named(silent)
        self._start(members)
        return among(self._config, members)

    def absent(self) -> list[str]:
        """Returns names and addresses of the workers that are left out."""
        return self._named(index for index in self._others if index not in self.members)

    def is_worker_back(self) -> bool:
        """Returns whether more workers can train together than do."""
        return self._is_back.is_set()

    def watch(self) -> None:
        """Starts a thread that calls those who are left out."""
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
        """Returns the numbers of as many of those who are there as can share a batch, worker 0 first."""
        possible = [count for count in range(1, len(present) + 1) if self._can_share(count)]
        return sorted(present)[:max(possible, default=0)]

    def _connect(self):
        for index in self._others:
            connection = self._connections.get(index)
            if connection and select.select([connection], [], [], 0)[0]:  # it has closed: nothing else is to be said
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
