"""Ports of a cluster's processes: whether this process can listen at its own, and whether others listen at theirs."""

import contextlib
import errno
import os
import socket
import time
from typing import Any

from absl import logging

from lingpipe.cluster import cluster_config

SECONDS_TO_WAIT = 300  # for other processes, and for a port that one of an earlier run still holds
_SECONDS_BETWEEN_TRIES = .5
_SECONDS_TO_ANSWER = 1
_MOST_CALLERS = 4096


def is_open(address: str) -> bool:
    """Return whether something listens at 'host:port'."""
    with contextlib.suppress(OSError):
        socket.create_connection(cluster_config.host_and_port(address), timeout=_SECONDS_TO_ANSWER).close()
        return True
    return False


def check(config: cluster_config.ClusterConfig) -> None:
    """Wait until a server can listen, as `listening`; TensorFlow only says 'Could not start gRPC server'."""
    listening(config).close()


def listening(config: cluster_config.ClusterConfig) -> socket.socket:
    """Return a socket that listens at the port of this process, on all networks; a warning names a port that is taken.

    Raises:
        RuntimeError: the port stays taken; the message says what to do.
    """
    _, port = cluster_config.host_and_port(config.address)
    dualstack: dict[str, Any] = {'family': socket.AF_INET6, 'dualstack_ipv6': True}
    everywhere = dualstack if socket.has_dualstack_ipv6() else {}
    deadline, has_warned = time.monotonic() + SECONDS_TO_WAIT, False
    while True:
        try:
            return socket.create_server(('', port), backlog=_MOST_CALLERS, **everywhere)
        except OSError as error:
            sentence = in_words(config, os.strerror(error.errno or 0))
            if error.errno != errno.EADDRINUSE or time.monotonic() >= deadline:
                raise RuntimeError(sentence) from error
        if not has_warned:
            logging.warning('%s Until then this process waits, %g s at most.', sentence, SECONDS_TO_WAIT)
            has_warned = True
        time.sleep(_SECONDS_BETWEEN_TRIES)


def in_words(config: cluster_config.ClusterConfig, reason: str) -> str:
    """Return why a server cannot listen, in the system's words, and what to do."""
    _, port = cluster_config.host_and_port(config.address)
    return (f'{config.task} cannot serve at port {port} ({reason}). See which process holds it (ss -ltnp "sport = '
            f':{port}"), stop that, or give this task another port in the cluster of every process (--cluster_spec or '
            'TF_CONFIG).')
