"""Where the partitions of a pipeline go in a TPU system, by the route that its params choose."""

from lingpipe.distribute import logical_cores, spmd_cores

LOGICAL_CORES, SPMD = 'logical_cores', 'spmd'


def place(body_params, system):
    """Gives every partition of every replica a core of a TPU system.

    Args:
        body_params: `GPipeLayer.Params()` with its numbers resolved.
        system: `tpu_system.TpuSystem`.

    Returns:
        List of device names, one a partition, those of each replica after the other; or, for tpu_route='logical_cores' and 'spmd', the `LogicalCores` or `SpmdCores`.

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
    return system.devices[:num_replicas * num_partitions]


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
