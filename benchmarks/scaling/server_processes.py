"""TensorFlow servers in processes of their own on this machine, as hosts of a cluster would run them, each on one
thread."""

import contextlib

import tensorflow as tf

from benchmarks.support import common
from lingpipe.cluster import cluster_config

_JOB = 'worker'


@contextlib.contextmanager
def devices(num_processes):
    """Starts servers, connects this process to them, and ends them when the block ends or this process does.

    A server ends with the pipe that its orders come through, so none outlives the process that started it, whatever
    ends that::

        this process ──pipe──> server 0, a thread      /job:worker/replica:0/task:0/device:CPU:0
                     ──pipe──> server 1, a thread      /job:worker/replica:0/task:1/device:CPU:0

    Connect a process once only: TensorFlow cannot forget a cluster.

    Args:
        num_processes: number of servers.

    Yields:
        List of the names of their devices, one a server.

    Raises:
        ProcessDied: a server could not start; the message says why.
    """
    addresses = cluster_config.free_addresses(num_processes)
    with contextlib.ExitStack() as stack:
        processes = [stack.enter_context(common.Process(serve, addresses, task)) for task in range(num_processes)]
        for process in processes:
            process.ask()
        for process in processes:
            process.answer()
        tf.config.experimental_connect_to_cluster(tf.train.ClusterSpec({_JOB: addresses}))
        yield [f'/job:{_JOB}/replica:0/task:{task}/device:CPU:0' for task in range(num_processes)]


def serve(addresses, task):
    """Runs in a process of its own.

    Args:
        addresses: list of 'host:port' of all servers.
        task: which of them this one is.

    Yields:
        Its address as TensorFlow names it, once it serves; it goes on serving until its process ends.
    """
    config = tf.compat.v1.ConfigProto(
        intra_op_parallelism_threads=1, inter_op_parallelism_threads=1, device_count={'CPU': 1, 'GPU': 0})
    server = tf.distribute.Server(
        tf.train.ClusterSpec({_JOB: addresses}), job_name=_JOB, task_index=task, config=config)
    while True:
        yield server.target
