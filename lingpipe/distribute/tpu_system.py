"""Finding and starting the TPU system that a program runs on."""

from typing import Any, NamedTuple

import tensorflow as tf

LOCAL = 'local'


class TpuSystem(NamedTuple):
    """A TPU system that is ready for work.

    Attributes:
        resolver: `tf.distribute.cluster_resolver.TPUClusterResolver`.
        topology: `tf.tpu.experimental.Topology`.
    """

    resolver: Any
    topology: Any

    @property
    def devices(self):
        """Names of its cores as devices of TensorFlow, chip by chip."""
        return [device.name for device in tf.config.list_logical_devices('TPU')]


def start(name=LOCAL):
    """Connects to a TPU system and starts it; what its memory held is lost.

    Args:
        name: name of a Cloud TPU, address of its worker as grpc://10.0.0.2:8470, or 'local' for the machine's own.

    Returns:
        `TpuSystem`.

    Raises:
        RuntimeError: there is no such system, or this TensorFlow cannot use it; the message says what to check.
    """
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=name)
        if name != LOCAL:
            tf.config.experimental_connect_to_cluster(resolver)
        system = TpuSystem(resolver, tf.tpu.experimental.initialize_tpu_system(resolver))
    except (tf.errors.OpError, OSError, ValueError, RuntimeError) as error:
        raise RuntimeError(_what_to_check(name, error)) from error
    if not system.devices:
        raise RuntimeError(_what_to_check(name, 'it has no cores'))
    return system


def _what_to_check(name, error):
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    if name == LOCAL:
        return (f"--tpu=local: no TPU of this machine could be started ({reason}). Check that the machine is a TPU VM (it has "
                "/dev/accel0 or /dev/vfio/0), that TensorFlow is the build for TPUs (tensorflow-tpu, with the libtpu "
                'that its release notes name), and that no other program holds the TPU; or run with --device=cpu.')
    return (f'--tpu={name}: this TPU could not be reached ({reason}). Check that it exists and is READY (gcloud compute tpus '
            'tpu-vm list --zone=ZONE), that this machine is in its project and network with access to the metadata server, and '
            'that its TensorFlow has the version of this one; on the TPU VM itself use --tpu=local.')
