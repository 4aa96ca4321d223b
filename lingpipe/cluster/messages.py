"""Messages between the processes of a cluster, through queues on the servers.

    chief                                   worker or parameter server
    tell_end ─────────────────────────────> wait_for_end           training has ended, with an exit code
    listen <─────────────────────────────── ask_to_stop            this machine is about to be preempted
"""

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from absl import logging

from lingpipe.cluster import cluster_config

_ENDED, _STOP = 'lingpipe_training_has_ended', 'lingpipe_stop_was_asked_for'  # names of queues
_SECONDS_BETWEEN_LOOKS = 0.05
_SECONDS_TO_TELL, _SECONDS_TO_LISTEN, _SECONDS_TO_CLOSE = 5, 1, 30
_hearers: dict[str, Callable[[str], Any]] = {}  # address of a server -> whom to call
_lock = threading.Lock()


def tell_end(config: cluster_config.ClusterConfig, code: int = 0) -> None:
    """Tell all workers and servers to end with an exit code; wait at most 5 seconds: some may no longer listen."""
    threads = [_start(_send_end, config, name, code) for name in config.tasks('worker', 'ps')]
    deadline = time.monotonic() + _SECONDS_TO_TELL
    for thread in threads:
        thread.join(max(0, deadline - time.monotonic()))


def listen(config: cluster_config.ClusterConfig, job: str, heard: Callable[[str], Any]) -> None:
    """Call `heard`, in another thread, with the name of each server of a job that asks the chief to stop.

    `heard` replaces the function of an earlier call.
    """
    for name in config.tasks(job):
        address = config.address_of(name)
        with _lock:
            is_listened_to = address in _hearers
            _hearers[address] = heard
        if not is_listened_to:
            _start(_hear, name, address)


def wait_for_end(config: cluster_config.ClusterConfig, target: str) -> int:
    """Wait until the chief tells the server `target` of this process to end; return the exit code."""
    return _receive(_ENDED, config.task, target)


def ask_to_stop(config: cluster_config.ClusterConfig, target: str) -> bool:
    """Ask the chief to stop, through the server `target` of this process; return whether a chief listens."""
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
    """Open a session at one server, and the queue named `word` there: eager code does not share such queues."""
    device = cluster_config.device_of(name)
    settings = tf.compat.v1.ConfigProto(device_filters=[device])  # else it waits for other servers
    with tf.Graph().as_default(), tf.device(f'{device}/device:CPU:0'):
        queue = tf.queue.FIFOQueue(1, tf.int32, shapes=[()], shared_name=word)
        session = tf.compat.v1.Session(target, config=settings)
        try:
            yield session, queue
        finally:
            _start(_close, session).join(_SECONDS_TO_CLOSE)


def _close(session):
    """Close a session. A server that has restarted does not know it, and one that hangs never answers."""
    with contextlib.suppress(tf.errors.OpError):
        session.close()
