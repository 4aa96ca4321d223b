"""Checks of ports and peers, and messages between processes.

TensorFlow alone would wait forever for a missing process. Messages go through queues on the servers::

    chief                                   worker or parameter server
    tell_end ─────────────────────────────> wait_for_end           training has ended, with an exit code
    listen <─────────────────────────────── ask_to_stop            this machine is about to be preempted
"""

import contextlib
import errno
import os
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from absl import logging

from lingpipe.cluster import cluster_config, waits

SECONDS_TO_WAIT = 300  # for peers, and for a port that a process of an earlier run still holds
SECONDS_BETWEEN_TRIES = .2
_SECONDS_TO_CONNECT, _SECONDS_TO_ANSWER = 1, 5
_MOST_CALLERS = 4096
_ENDED, _STOP = 'lingpipe_training_has_ended', 'lingpipe_stop_was_asked_for'  # names of queues
_SECONDS_BETWEEN_LOOKS = 0.05
_SECONDS_TO_TELL, _SECONDS_TO_LISTEN, _SECONDS_TO_CLOSE = 5, 1, 30
_hearers: dict[str, Callable[[str], Any]] = {}  # address of a server -> function to call
_lock = threading.Lock()


def is_open(address: str) -> bool:
    """Return whether a process listens at an address 'host:port'."""
    with contextlib.suppress(OSError):
        socket.create_connection(cluster_config.host_and_port(address), timeout=_SECONDS_TO_CONNECT).close()
        return True
    return False


def listening(config: cluster_config.ClusterConfig) -> socket.socket:
    """Return a socket that listens at this process's port on all network interfaces. Wait while the port is taken.

    Raises:
        RuntimeError: the port stays taken for `SECONDS_TO_WAIT`, or the system refuses the port.
    """
    _, port = cluster_config.host_and_port(config.address)
    dualstack: dict[str, Any] = {'family': socket.AF_INET6, 'dualstack_ipv6': True}
    everywhere = dualstack if socket.has_dualstack_ipv6() else {}
    deadline, has_warned = time.monotonic() + SECONDS_TO_WAIT, False
    while True:
        try:
            return socket.create_server(('', port), backlog=_MOST_CALLERS, **everywhere)
        except OSError as error:
            sentence = taken_port(config, os.strerror(error.errno or 0))
            if error.errno != errno.EADDRINUSE or time.monotonic() >= deadline:
                raise RuntimeError(sentence) from error
        if not has_warned:
            logging.warning('%s Until then this process waits, %g s at most.', sentence, SECONDS_TO_WAIT)
            has_warned = True
        time.sleep(SECONDS_BETWEEN_TRIES)


def taken_port(config: cluster_config.ClusterConfig, reason: str) -> str:
    """Return the error message for a server that cannot listen. `reason` is a text such as 'Address already in use'."""
    _, port = cluster_config.host_and_port(config.address)
    return (f'{config.task} cannot serve at port {port} ({reason}). See which process holds it (ss -ltnp "sport = '
            f':{port}"), stop that, or give this task another port in the cluster of every process (--cluster_spec or '
            'TF_CONFIG).')


def silent_tasks(config: cluster_config.ClusterConfig, seconds: float = _SECONDS_TO_ANSWER) -> list[str]:
    """Return the names of the peers that do not answer within `seconds`."""
    others = config.others()
    answering: set[str] = set()
    threads = [threading.Thread(target=_ask, args=(config, name, seconds, answering), daemon=True) for name in others]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds + 1)
    return [name for name in others if name not in answering]


def _ask(config, name, seconds, answering):
    address = config.address_of(name)
    if not is_open(address):
        return
    device = cluster_config.device_of(name)
    settings = tf.compat.v1.ConfigProto(device_filters=[device], operation_timeout_in_ms=int(1000 * seconds))
    try:
        with tf.Graph().as_default(), tf.device(f'{device}/device:CPU:0'):
            one = tf.random.uniform([])  # a constant would be computed here
            with tf.compat.v1.Session(f'grpc://{address}', config=settings) as session:
                session.run(one)
                answering.add(name)
    except tf.errors.OpError:
        pass


def silence_in_words(config: cluster_config.ClusterConfig) -> str:
    """Return a sentence that says which other processes do not answer."""
    silent = silent_tasks(config)
    return f'No answer came from {", ".join(silent)}.' if silent else 'All other processes answer.'


def await_workers(config: cluster_config.ClusterConfig, find_missing: Callable[[], list[str]],
                  is_enough: Callable[[list[str], float], bool] = lambda missing, seconds: not missing) -> list[str]:
    """Wait until enough workers answer, and return the names of the missing workers.

    Args:
        find_missing: function that returns the names of workers that do not answer.
        is_enough: function of the missing workers' names and the seconds waited. It returns whether to stop waiting.

    Raises:
        ConnectionError: too few workers answer within `SECONDS_TO_WAIT`.
    """
    begin, missing = time.monotonic(), find_missing()
    with waits.Wait('the workers', 0, details=lambda: f'No answer came from {config.in_words(missing)}.'):
        while not is_enough(missing, time.monotonic() - begin):
            if time.monotonic() - begin > SECONDS_TO_WAIT:
                raise ConnectionError(
                    f'After {SECONDS_TO_WAIT:.0f} s there is no answer from {config.in_words(missing)}, of '
                    f'{config.num_workers} workers. Check that each is running the same command with its own task, '
                    'that the addresses are right, and that no firewall blocks them.')
            time.sleep(SECONDS_BETWEEN_TRIES)
            missing = find_missing()
    return missing


def connecting(config: cluster_config.ClusterConfig, seconds: float | None = None) -> waits.Wait:
    """Return a `Wait` for a `with` block that connects to peers, by default for at most `SECONDS_TO_WAIT`."""
    limit = SECONDS_TO_WAIT if seconds is None else seconds
    return waits.Wait(f'connections to {config.in_words(config.others())}', limit,
                      details=lambda: silence_in_words(config))


def tell_end(config: cluster_config.ClusterConfig, code: int = 0) -> None:
    """Tell workers and parameter servers to end with exit code `code`. This takes at most 5 seconds."""
    threads = [_start(_send_end, config, name, code) for name in config.tasks('worker', 'ps')]
    deadline = time.monotonic() + _SECONDS_TO_TELL  # some may be gone
    for thread in threads:
        thread.join(max(0, deadline - time.monotonic()))


def listen(config: cluster_config.ClusterConfig, job: str, heard: Callable[[str], Any]) -> None:
    """Call `heard` when a server of `job` asks the chief to stop.

    `heard` gets the name of the server, and runs in another thread. A later call of `listen` replaces `heard`.
    """
    for name in config.tasks(job):
        address = config.address_of(name)
        with _lock:
            is_listened_to = address in _hearers
            _hearers[address] = heard
        if not is_listened_to:
            _start(_hear, name, address)


def wait_for_end(config: cluster_config.ClusterConfig, target: str) -> int:
    """Wait for the exit code that the chief sends to `target`, the server of this process."""
    return _receive(_ENDED, config.task, target)


def ask_to_stop(config: cluster_config.ClusterConfig, target: str) -> bool:
    """Ask the chief to stop, and return whether a chief listens. `target` is the server of this process."""
    with _session(_STOP, config.task, target) as (session, queue):
        session.run(queue.enqueue(0))
        size, deadline = queue.size(), time.monotonic() + _SECONDS_TO_LISTEN
        while (is_unheard := bool(session.run(size))) and time.monotonic() < deadline:
            time.sleep(_SECONDS_BETWEEN_LOOKS)
    return not is_unheard


def _hear(name, address):
    is_heard = False
    with contextlib.suppress(tf.errors.OpError):  # the server has ended; the step that needs it will fail
        _receive(_STOP, name, f'grpc://{address}')
        is_heard = True
    with _lock:
        heard = _hearers.pop(address)
    if is_heard:
        heard(name)


def _start(function, *arguments):
    thread = threading.Thread(target=function, args=arguments, name='messages', daemon=True)
    thread.start()
    return thread


def _send_end(config, name, code):
    try:
        with _session(_ENDED, name, f'grpc://{config.address_of(name)}') as (session, queue):
            session.run(queue.enqueue(code))
    except tf.errors.OpError as error:
        logging.info('%s was not told to end: %s', name, error)


def _receive(word, name, target):
    with _session(word, name, target) as (session, queue):
        return int(session.run(queue.dequeue()))


@contextlib.contextmanager
def _session(word, name, target):
    """Yield a TensorFlow session at a server, and the server's queue named `word`."""
    device = cluster_config.device_of(name)
    settings = tf.compat.v1.ConfigProto(device_filters=[device])  # else the session waits for other servers
    with tf.Graph().as_default(), tf.device(f'{device}/device:CPU:0'):
        queue = tf.queue.FIFOQueue(1, tf.int32, shapes=[()], shared_name=word)
        session = tf.compat.v1.Session(target, config=settings)  # needed, because eager queues cannot be shared
        try:
            yield session, queue
        finally:
            _start(_close, session).join(_SECONDS_TO_CLOSE)


def _close(session):
    with contextlib.suppress(tf.errors.OpError):  # of a server that has restarted
        session.close()  # may never return if the server hangs
