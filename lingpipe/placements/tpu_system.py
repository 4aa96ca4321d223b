"""The TPU system that a program runs on, and where the partitions of a pipeline go in it."""

from typing import Any, NamedTuple

import tensorflow as tf

from lingpipe.placements import logical_cores, spmd_cores
from lingpipe.training import placement

LOCAL = 'local'
LOGICAL_CORES, SPMD = 'logical_cores', 'spmd'


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


def start_tpu_system(name=LOCAL):
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


def place(body_params, system):
    """Gives every partition of every replica a core of a TPU system.

    Args:
        body_params: `GPipeLayer.Params()` with its numbers resolved.
        system: `tpu_system.TpuSystem`.

    Returns:
        `Placement`: for tpu_route='logical_cores' and 'spmd' the `LogicalCores` or `SpmdCores`, else one with the name of a core
        for each partition, those of each replica after the other.

    Raises:
        ValueError: the system does not have that many cores.
    """
    if body_params.tpu_route == LOGICAL_CORES:
        return logical_cores.LogicalCores(system.resolver, system.topology, body_params.num_partitions)
    if body_params.tpu_route == SPMD:
        return spmd_cores.SpmdCores(system.resolver, system.topology, body_params.num_partitions)
    num_partitions, num_replicas = body_params.num_partitions, body_params.num_replicas
    if num_replicas * num_partitions > len(system.devices):
        times = f' times num_replicas={num_replicas}' if num_replicas > 1 else ''
        raise ValueError(f'num_partitions={num_partitions}{times} is more than the {len(system.devices)} cores of the TPU system. '
                         f'Set {"their product" if times else "it"} to {len(system.devices)} or less.')
    return placement.Placement(system.devices[:num_replicas * num_partitions])


def validate(body_params, mode):
    """Raises ValueError, before a system is started, where a mode of the command line cannot run on a TPU.

    Args:
        body_params: `GPipeLayer.Params()`.
        mode: value of --mode.
    """
    p = body_params
    if p.tpu_route in (LOGICAL_CORES, SPMD) and mode != 'train':
        raise ValueError(f"tpu_route={p.tpu_route!r} is for --mode=train only, but --mode={mode} was given. Add "
                         "--model_params_override=\"task.body.tpu_route='stage_programs'\", or --device=cpu.")
    if p.tpu_route in (LOGICAL_CORES, SPMD) and p.num_replicas != 1:
        raise ValueError(f'num_replicas={p.num_replicas!r} is for other routes: with tpu_route={p.tpu_route!r} there are as many replicas '
                         'as the system has room for. Set it to 1.')
    if mode == 'generate':
        raise ValueError('--mode=generate does not run on TPUs: a text grows step by step, and they want fixed shapes. Add '
                         '--device=cpu.')
    if p.devices is not None:
        raise ValueError(f'task.body.devices={list(p.devices)} names devices, but on a TPU the partitions go to the cores in their '
                         'order. Set it to None, or add --device=cpu.')
    if p.partition_by == 'time':
        raise ValueError("task.body.partition_by='time' measures layers, which does not run on TPUs. Set it to 'flops'.")


def with_defaults(params):
    """Returns an experiment's params with the precision that TPUs are made for, where they name none.

    Args:
        params: Params with `task`.

    Raises:
        ValueError: they name a precision that is not for TPUs.
    """
    policy = params.task.body.dtype_policy or params.task.dtype_policy
    if policy == 'mixed_float16':
        raise ValueError("dtype_policy='mixed_float16' is not for TPUs. Set it to 'mixed_bfloat16' or 'float32'.")
    if policy:
        return params
    params = params.Copy()
    params.task.dtype_policy = 'mixed_bfloat16'
    return params
