"""A process that lends its devices to a cluster: it computes what the chief sends it, until the training has ended.

    chief                                     worker or parameter server
    ... steps ... ──────────────────────────> serve(): devices of /job:worker/task:0
    announce_end() ──> queue of the server ─> returns
"""

import contextlib
import os
import signal
import socket
import sys
import threading
import time

import tensorflow as tf
from absl import logging

_END = 'lingpipe_training_has_ended'
_SECONDS_TO_NOTICE = .2
_SECONDS_TO_TELL = 5
_SECONDS_TO_LEAVE = 1  # in which the chief closes its session: that of a server that is gone cannot be closed


def serve(config, num_cpu_devices=1, use_gpus=True):
    """Lends the devices of this process to the cluster until the training has ended, or SIGTERM or SIGINT arrives.

    Then the process ends at once, with exit code 0: TensorFlow cannot stop a server otherwise. Each CPU device does its work on
    one thread, as virtual devices do.

    Args:
        config: `ClusterConfig`; its task is a worker or a parameter server.
        num_cpu_devices: into how many devices to split the CPU, one for each stage that the chief puts here.
        use_gpus: whether to lend the GPUs of this machine too.

    Raises:
        RuntimeError: the port is taken; the message says what to do.
    """
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *unused: ended.set())
    server = _start(config, num_cpu_devices, use_gpus)
    print(f'{config.task} serves at {config.address} with {num_cpu_devices} CPU device{"s" * (num_cpu_devices > 1)}.', flush=True)
    threading.Thread(target=_await_end, args=(config, server.target, ended), name='end', daemon=True).start()
    while not ended.wait(_SECONDS_TO_NOTICE):  # a signal just before a wait would be noticed after it only
        pass
    print(f'{config.task} has ended.', flush=True)
    sys.stderr.flush()
    os._exit(0)


def announce_end(config):
    """Tells all workers and parameter servers that the training has ended, so that they end too.

    One that does not listen any more is left alone, after 5 seconds at most.

    Args:
        config: `ClusterConfig` of the chief.
    """
    tasks = [(job, index) for job in ('worker', 'ps') for index in range(len(config.jobs.get(job, ())))]
    threads = [threading.Thread(target=_tell, args=(config, *task), daemon=True) for task in tasks]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + _SECONDS_TO_TELL
    for thread in threads:
        thread.join(max(0, deadline - time.monotonic()))


def _start(config, num_cpu_devices, use_gpus):
    port = int(config.address.rpartition(':')[2])
    check_port(config)
    devices = {'CPU': num_cpu_devices} | ({} if use_gpus else {'GPU': 0})
    settings = tf.compat.v1.ConfigProto(
        intra_op_parallelism_threads=1, inter_op_parallelism_threads=max(2, num_cpu_devices), device_count=devices)
    try:
        return tf.distribute.Server(
            tf.train.ClusterSpec(config.jobs), job_name=config.task_type, task_index=config.task_index, config=settings)
    except tf.errors.UnknownError as error:
        raise RuntimeError(_port_in_words(config, port, str(error).splitlines()[0])) from error


def check_port(config):
    """Raises RuntimeError where a server could not listen; TensorFlow only says 'Could not start gRPC server'.

    Args:
        config: `ClusterConfig`.
    """
    port = int(config.address.rpartition(':')[2])
    everywhere = {'family': socket.AF_INET6, 'dualstack_ipv6': True} if socket.has_dualstack_ipv6() else {}
    try:
        socket.create_server(('', port), **everywhere).close()
    except OSError as error:
        raise RuntimeError(_port_in_words(config, port, os.strerror(error.errno))) from error


def _port_in_words(config, port, reason):
    return (f'{config.task} cannot serve at port {port} ({reason}). See which process holds it (ss -ltnp "sport = :{port}"), stop '
            'that, or give this task another port in the cluster of every process (--cluster_spec or TF_CONFIG).')


def _await_end(config, target, ended):
    with contextlib.suppress(tf.errors.OpError):
        with _session(config.task_type, config.task_index, target) as (session, queue):
            session.run(queue.dequeue())
        time.sleep(_SECONDS_TO_LEAVE)
        ended.set()


def _tell(config, job, index):
    try:
        with _session(job, index, f'grpc://{config.jobs[job][index]}') as (session, queue):
            session.run(queue.enqueue(True))
    except tf.errors.OpError as error:
        logging.info('%s:%d was not told that the training has ended: %s', job, index, error)


@contextlib.contextmanager
def _session(job, index, target):
    """Opens a session at one server, and there the queue that the end is announced through.

    Sessions share their queues on a server; eager code has its own. The filter keeps the session from waiting for other servers.
    """
    device = f'/job:{job}/task:{index}'
    settings = tf.compat.v1.ConfigProto(device_filters=[device])
    with tf.Graph().as_default(), tf.device(f'{device}/device:CPU:0'):
        queue = tf.queue.FIFOQueue(1, tf.bool, shapes=[()], shared_name=_END)
        with tf.compat.v1.Session(target, config=settings) as session:
            yield session, queue
