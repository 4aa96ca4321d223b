"""A plan beside what the TPU compiler makes of it."""

from lingpipe.layers import unallocated
from lingpipe.planner import compiled_stages, stage_calls, tpu_compiler, tpu_topologies
from lingpipe.training import experiment, tables

_MIB = 2**20
_KINDS = ('weights', 'slots', 'gradients', 'waiting', 'at_work', 'temporaries')


def compile_plan(planned, topology, cache_dir=None):
    """Compiles what each device of a plan would run, with nothing allocated.

    Args:
        planned: `planning.Planned` of the params of an experiment.
        topology: the TPUs to compile for, such as 'v5e:2x2'; a device of the plan is one of its devices.
        cache_dir: folder that keeps what was compiled, or None.

    Returns:
        List of `CompiledDevice`.

    Raises:
        ValueError: the topology is unknown, or micro-batches differ in size.
        TpuCompileError: the compiler is not installed, or failed.
    """
    tpu_topologies.check(topology)
    params, plan = planned.params, planned.plan
    with tpu_compiler.TpuCompiler(cache_dir) as compiler:
        with unallocated.unallocated_variables():
            task = params.task.Instantiate()
        specs, target_specs = (spec(params.input) for spec in (params.input.cls.InputSpec, params.input.cls.TargetSpec))
        body = experiment.body_params(params).Set(partition_by=plan.ends)
        pipe = stage_calls.unallocated_pipeline(body, specs)
        step = stage_calls.step_calls(pipe, specs, target_specs, task.loss)
        return compiled_stages.compile_stages(step, plan.setting.num_slots, compiler, topology)


def report(plan, devices, topology):
    """Returns a table of the planner's and the compiler's figures, one row a device, and one sentence.

    Args:
        plan: `Plan`.
        devices: list of `CompiledDevice`.
        topology: what was compiled for.
    """
    header = ['device', 'planned MiB', 'compiled MiB', *(kind.replace('_', ' ') for kind in _KINDS), 'limit MiB', 'fits', 'fullest in']
    rows = [[index, planned / _MIB, device.total / _MIB, *(getattr(device, kind) / _MIB for kind in _KINDS),
             device.limit / _MIB, 'yes' if device.fits else 'no', device.moment]
            for index, (planned, device) in enumerate(zip(plan.device_bytes, devices))]
    return f'{tables.table(header, rows)}\n\n{_sentence(devices, topology)}'


def _sentence(devices, topology):
    full = [index for index, device in enumerate(devices) if not device.fits]
    if not full:
        return f'By the TPU compiler it fits on devices of {topology}.'
    return (f'By the TPU compiler device{"s" if len(full) > 1 else ""} {", ".join(map(str, full))} of {topology} cannot hold it. '
            "Use smaller micro-batches, recompute='layer', or more partitions.")
