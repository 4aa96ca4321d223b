"""Messages between the processes of a cluster: a word and an exit code, through queues on their servers.

    chief                                   worker or parameter server
    send_to_all(ENDED, 0) ────────────────> wait_for(ENDED)        training has ended
    listen(STOP) <───────────────────────── ask_chief(STOP)        this machine is about to be preempted
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf
from absl import logging

from lingpipe.cluster import cluster_config

ENDED = 'lingpipe_training_has_ended'
STOP = 'lingpipe_stop_was_asked_for'
_SECONDS_TO_TELL = 5
_SECONDS_TO_LISTEN = 1
_SECONDS_BETWEEN_LOOKS = 0.05
_SECONDS_TO_CLOSE = 30
_hearers: dict[tuple[str, str], Callable[[str], Any]] = {}  # (word, address) -> whom to call
_lock = threading.Lock()


def send_to_all(config: cluster_config.ClusterConfig, word: str, code: int = 0) -> None:
    """Sends a word to all workers and parameter servers. It tries for at most 5 seconds: some may no longer listen.

    Args:
        config: `ClusterConfig` of the chief.
        word: ENDED or STOP.
        code: the exit code with which they are to end.
    """
    threads = [_start(_send, config, name, word, code) for name in config.tasks('worker', 'ps')]
    deadline = time.monotonic() + _SECONDS_TO_TELL
    for thread in threads:
        thread.join(max(0, deadline - time.monotonic()))


def listen(config: cluster_config.ClusterConfig, word: str, jobs: Iterable[str], heard: Callable[[str], Any]) -> None:
    """Calls a function for each server that sends a word, from another thread; it replaces an earlier function.

    Args:
        config: `ClusterConfig` of the chief.
        word: ENDED or STOP.
        jobs: the jobs to listen to, of 'worker' and 'ps'.
        heard: function of the name of the task, such as 'worker:1'.
    """
    for name in config.tasks(*jobs):
        address = config.address_of(name)
        with _lock:
            is_listened_to = (word, address) in _hearers
            _hearers[word, address] = heard
        if not is_listened_to:
            _start(_hear, word, name, address)


def wait_for(config: cluster_config.ClusterConfig, word: str, target: str) -> int:
    """Waits until the chief sends a word to the server `target` of this process; returns its code."""
    return _receive(word, config.task, target)


def ask_chief(config: cluster_config.ClusterConfig, word: str, target: str) -> bool:
    """Sends a word to the chief, through the server `target` of this process; returns whether a chief listens."""
    with _session(word, config.task, target) as (session, queue):
        session.run(queue.enqueue(0))
        size, deadline = queue.size(), time.monotonic() + _SECONDS_TO_LISTEN
        while (is_unheard := bool(session.run(size))) and time.monotonic() < deadline:
            time.sleep(_SECONDS_BETWEEN_LOOKS)
    return not is_unheard


def _hear(word, name, address):
    is_heard = False
    with contextlib.suppress(tf.errors.OpError):  # the server has ended; the step that needs it will fail
        _receive(word, name, f'grpc://{address}')
        is_heard = True
    with _lock:
        heard = _hearers.pop((word, address))
    if is_heard:
        heard(name)


def _start(function, *arguments):
    thread = threading.Thread(target=function, args=arguments, name='messages', daemon=True)
    thread.start()
    return thread


def _send(config, name, word, code):
    try:
        with _session(word, name, f'grpc://{config.address_of(name)}') as (session, queue):
            session.run(queue.enqueue(code))
    except tf.errors.OpError as error:
        logging.info('%s did not get %s: %s', name, word, error)


def _receive(word, name, target):
    with _session(word, name, target) as (session, queue):
        return int(session.run(queue.dequeue()))


@contextlib.contextmanager
def _session(word, name, target):
    """Opens a session at one server, and the queue of a word there.

    It is a session because sessions share the queues of a server, and eager code does not. The device filter keeps it
    from waiting for other servers.
    """
    device = cluster_config.device_of(name)
    settings = tf.compat.v1.ConfigProto(device_filters=[device])
    with tf.Graph().as_default(), tf.device(f'{device}/device:CPU:0'):
        queue = tf.queue.FIFOQueue(1, tf.int32, shapes=[()], shared_name=word)
        session = tf.compat.v1.Session(target, config=settings)
        try:
            yield session, queue
        finally:
            _start(_close, session).join(_SECONDS_TO_CLOSE)


def _close(session):
    """Closes a session. A server that has restarted does not know it, and one that hangs never answers."""
    with contextlib.suppress(tf.errors.OpError):
        session.close()
