"""Plans of published models for the cores of a TPU."""

import lingpipe
from lingpipe import hyperparams, model_registry
from lingpipe.placements import tpu_system


def plan(model, topology, override='', recompute='', dtype_policy=None):
    """Return the `Planned` of a model for devices of a topology.

    Args:
        model: name of a model, as for run.py.
        topology: name of the topology, such as 'v2:2x2'.
        override: changes of params, as for run.py.
        recompute: mode of recomputation; '': the model's own.
        dtype_policy: precision; None: the model's own, else what TPUs train with.
    """
    params = model_registry.GetParams(model, 'Train')
    hyperparams.ApplyOverrides(params, override)
    params.task.body.recompute = recompute or params.task.body.recompute
    params.task.dtype_policy = dtype_policy or params.task.dtype_policy
    return lingpipe.plan(tpu_system.with_defaults(params), topology.split(':')[0])
