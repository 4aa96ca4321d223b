"""Noticing that the process of another worker has ended: the system then closes the connections to it.

TensorFlow often reports the end of a worker at once, but may also wait without end for its part of a sum.
"""

import contextlib
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator

from lingpipe.cluster import child_process, cluster_config, waits

_SECONDS_TO_CONNECT = 5
_SECONDS_BETWEEN_LOOKS = 0.5
_SECONDS_OF_A_CONNECTION = 30  # gRPC closes one that says nothing, after a longer time
_SECONDS_FOR_TENSORFLOW = 2  # to report it, which names more of the cause


@contextlib.contextmanager
def ending_with_others(config: cluster_config.ClusterConfig,
                       on_end: Callable[[str], object] | None = None) -> Iterator[None]:
    """Within this scope, ends this process two seconds after that of another worker.

    ::

        worker 0 ── silent connection ──> port of worker 1      renewed every 30 seconds
                                               x                killed: the system closes the connection
        exit code 75 <── 2 s ─────────────────

    Leave it before other workers may end.

    Args:
        config: `ClusterConfig` of a worker; all others are connected.
        on_end: function of a sentence, called in another thread; None: `waits.end_process`.
    """
    has_left = threading.Event()
    for job, index in config.tasks('worker'):
        if index != config.task_index:
            arguments = f'{job}:{index}', config.jobs[job][index], has_left, on_end or waits.end_process
            threading.Thread(target=_watch, args=arguments, name='peer connection', daemon=True).start()
    try:
        yield
    finally:
        has_left.set()


def _watch(name, address, has_left, on_end):
    _wait_for_end(cluster_config.host_and_port(address), has_left)
    if not has_left.wait(_SECONDS_FOR_TENSORFLOW):
        on_end(f'The process of {name} ({address}) has ended in the middle of training. All workers stop. '
               f'{child_process.restart_in_words()}')


def _wait_for_end(place, has_left):
    """Returns when the process at a place has ended, or this process has left the scope."""
    connection = None
    try:
        while not has_left.is_set():
            older, connection = connection, _renewed(connection, place)
            if older and older is not connection:
                older.close()
            try:
                if connection and _closes(connection, has_left):
                    return
            except OSError:  # the way there is lost; whether the process is, the next connection tells
                connection.close()
                connection = None
            if connection is None:
                has_left.wait(_SECONDS_BETWEEN_LOOKS)
    except ConnectionRefusedError:
        return
    finally:
        if connection:
            connection.close()


def _renewed(connection, place):
    """Returns a new connection, or the old one, perhaps None, where the network is in trouble."""
    try:
        return socket.create_connection(place, timeout=_SECONDS_TO_CONNECT)
    except ConnectionRefusedError:
        raise
    except OSError:
        return connection


def _closes(connection, has_left):
    """Returns whether the other end closes a connection before it is to be renewed."""
    end = time.monotonic() + _SECONDS_OF_A_CONNECTION
    while time.monotonic() < end and not has_left.is_set():
        if select.select([connection], [], [], _SECONDS_BETWEEN_LOOKS)[0] and not connection.recv(4096):
            return True
    return False
