"""Ports of a cluster's processes: whether this process can listen at its own, and whether others answer at theirs."""

import contextlib
import enum
import errno
import os
import socket
import time
from collections.abc import Callable
from typing import Any

from absl import logging

from lingpipe.cluster import cluster_config

SECONDS_TO_WAIT = 300
_SECONDS_BETWEEN_TRIES = .5
_SECONDS_TO_ANSWER = 1
_MOST_CALLERS = 4096


class State(enum.Enum):
    """What is behind the address of a process."""

    SERVES = 'a server of gRPC'
    SILENT = 'a process that does not answer'
    NOBODY = 'no process, on a host that answers'
    UNREACHABLE = 'no answer from the host'


def state_of(address: str) -> State:
    """Returns what is behind an address, after 2 seconds at most.

    To connect is not enough: the system accepts for a process that was stopped. A server of gRPC speaks first.

    Args:
        address: 'host:port'.
    """
    try:
        connection = socket.create_connection(cluster_config.host_and_port(address), timeout=_SECONDS_TO_ANSWER)
    except ConnectionRefusedError:
        return State.NOBODY
    except OSError:
        return State.UNREACHABLE
    with connection:
        try:
            return State.SERVES if connection.recv(1) else State.NOBODY
        except TimeoutError:
            return State.SILENT
        except OSError:
            return State.UNREACHABLE


def is_open(address: str) -> bool:
    """Returns whether something listens at an address.

    Args:
        address: 'host:port'.
    """
    with contextlib.suppress(OSError):
        socket.create_connection(cluster_config.host_and_port(address), timeout=_SECONDS_TO_ANSWER).close()
        return True
    return False


def check(config: cluster_config.ClusterConfig, seconds: float = SECONDS_TO_WAIT) -> None:
    """Waits until a server can listen; TensorFlow only says 'Could not start gRPC server'.

    The port may still belong to a process of an earlier run that is about to end.

    Args:
        config: `ClusterConfig`.
        seconds: how long to wait for a port that is taken.

    Raises:
        RuntimeError: the port stays taken; the message says what to do.
    """
    listening(config, seconds).close()


def listening(config: cluster_config.ClusterConfig, seconds: float = SECONDS_TO_WAIT) -> socket.socket:
    """Returns a socket that listens at the port of this process, on all networks.

    Args:
        config: `ClusterConfig`.
        seconds: how long to wait for a port that is taken.

    Raises:
        RuntimeError: the port stays taken; the message says what to do.
    """
    _, port = cluster_config.host_and_port(config.address)
    dualstack: dict[str, Any] = {'family': socket.AF_INET6, 'dualstack_ipv6': True}
    everywhere = dualstack if socket.has_dualstack_ipv6() else {}
    try:
        return once_free(config, lambda: socket.create_server(('', port), backlog=_MOST_CALLERS, **everywhere), seconds)
    except OSError as error:
        raise RuntimeError(in_words(config, os.strerror(error.errno or 0))) from error


def once_free(config: cluster_config.ClusterConfig, listen: Callable[[], socket.socket],
              seconds: float = SECONDS_TO_WAIT) -> socket.socket:
    """Returns a socket that listens; a warning names a port that is taken, and then this waits for it.

    Args:
        config: `ClusterConfig`.
        listen: function that returns the socket.
        seconds: how long to wait for a port that is taken.

    Raises:
        RuntimeError: the port stays taken; the message says what to do.
        OSError: another error of `listen`.
    """
    deadline, has_warned = time.monotonic() + seconds, False
    while True:
        try:
            return listen()
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            sentence = in_words(config, os.strerror(error.errno))
            if time.monotonic() >= deadline:
                raise RuntimeError(sentence) from error
        if not has_warned:
            logging.warning('%s Until then this process waits, %g s at most.', sentence, seconds)
            has_warned = True
        time.sleep(_SECONDS_BETWEEN_TRIES)


def in_words(config: cluster_config.ClusterConfig, reason: str) -> str:
    """Returns why a server cannot listen, and what to do.

    Args:
        config: `ClusterConfig`.
        reason: the system's words.
    """
    _, port = cluster_config.host_and_port(config.address)
    return (f'{config.task} cannot serve at port {port} ({reason}). See which process holds it (ss -ltnp "sport = '
            f':{port}"), stop that, or give this task another port in the cluster of every process (--cluster_spec or '
            'TF_CONFIG).')
