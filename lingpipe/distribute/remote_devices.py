"""The devices of other machines, for the stages of one program's pipelines."""

import socket
import time

import tensorflow as tf

from lingpipe.distribute import local_devices

JOB = 'worker'
_SECONDS_BETWEEN_TRIES = 0.2


def connect(config, timeout_seconds=300):
    """Makes the devices of all workers this program's, which has to be the chief.

    Workers are clients of each other, and of the chief, from whom they fetch the input::

        chief     lays out the step, reads the input, writes checkpoints and curves
          │
          ├──> worker 0   server: stage 0 ──┐
          │                                 v  boundary tensors go from worker to worker
          └──> worker 1   server: stage 1

    Args:
        config: `ClusterConfig`.
        timeout_seconds: how long workers may take to start.

    Returns:
        List of the names of the workers' devices, one worker's after the other: accelerators, or where there are none CPUs.

    Raises:
        ConnectionError: workers cannot be reached; the message names them.
    """
    _wait_for(config.jobs[JOB], timeout_seconds)
    jobs = {job: list(config.jobs[job]) for job in ('chief', JOB)}
    try:
        tf.config.experimental_connect_to_cluster(tf.train.ClusterSpec(jobs), job_name='chief', task_index=0)
    except tf.errors.OpError as error:
        raise ConnectionError(
            f'The workers {", ".join(jobs[JOB])} answer, but no cluster came of it ({str(error).splitlines()[0]}). Check that each '
            'runs this version of TensorFlow and LingPipe with the same addresses, and start them again.') from error
    return devices()


def devices():
    """Returns the names of the devices that workers offer: accelerators, or where there are none CPUs."""
    names = [device.name for kind in (*local_devices.ACCELERATORS, 'CPU') for device in tf.config.list_logical_devices(kind)
             if is_remote(device.name)]
    kinds = [tf.DeviceSpec.from_string(name).device_type for name in names]
    return [name for name, kind in zip(names, kinds) if kind == kinds[0]]


def is_remote(device):
    """Whether a device, by its name, is a worker's."""
    return tf.DeviceSpec.from_string(device).job == JOB


def _wait_for(addresses, timeout_seconds):
    """Waits for all, since TensorFlow would give up after a fixed time and not say on whom."""
    missing, end = list(addresses), time.monotonic() + timeout_seconds
    while missing := [address for address in missing if not _answers(address)]:
        if time.monotonic() > end:
            raise ConnectionError(
                f'After {timeout_seconds} s there is no answer from {len(missing)} of {len(addresses)} workers: {", ".join(missing)}. '
                'Check that each is running the same command with its own task, that the addresses are right, and that no firewall '
                'stands between.')
        time.sleep(_SECONDS_BETWEEN_TRIES)


def _answers(address):
    host, _, port = address.rpartition(':')
    try:
        with socket.create_connection((host.strip('[]'), int(port)), timeout=1):
            return True
    except OSError:
        return False
