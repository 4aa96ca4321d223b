"""Where the partitions of a pipeline go in a TPU system, by the route that its params choose."""

from lingpipe.distribute import logical_cores

LOGICAL_CORES = 'logical_cores'


def place(body_params, system):
    """Gives every partition a core of a TPU system.

    Args:
        body_params: `GPipeLayer.Params()` with its numbers resolved.
        system: `tpu_system.TpuSystem`.

    Returns:
        List of device names, one a partition; or, for tpu_route='logical_cores', the `LogicalCores`.

    Raises:
        ValueError: the system does not have that many cores, or the route only compiles.
    """
    if body_params.tpu_route == 'spmd':
        raise ValueError("tpu_route='spmd' is for --mode=plan --compile so far: no training runs by it. Set it to "
                         "'stage_programs', or to 'auto'.")
    if body_params.tpu_route == LOGICAL_CORES:
        return logical_cores.LogicalCores(system.resolver, system.topology, body_params.num_partitions)
    if body_params.num_partitions > len(system.devices):
        raise ValueError(
            f'num_partitions={body_params.num_partitions} is more than the {len(system.devices)} cores of the TPU system. Set '
            f'it to {len(system.devices)} or less.')
    return system.devices[:body_params.num_partitions]


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
