"""A plan beside what the TPU compiler makes of it."""

import functools

import tensorflow as tf

from lingpipe.layers import unallocated
from lingpipe.placements import tpu_system
from lingpipe.planner import compiled_stages, spmd_program, stage_calls, tpu_compiler, tpu_topologies
from lingpipe.training import experiment, optimizer, tables, tpu_routes

_MIB = 2**20
_KINDS = ('weights', 'slots', 'gradients', 'waiting', 'at_work', 'temporaries')


def compiled_report(planned, topology, cache_dir=None):
    """Compiles what the devices of a plan would run, with nothing allocated.

    With tpu_route='spmd' that is one program for all of them, else the functions of each. 'auto' is what a training on a system
    of that topology takes. The one program is that of a single replica, which has the whole batch.

    Args:
        planned: `planning.Planned` of the params of an experiment.
        topology: the TPUs to compile for, such as 'v5e:2x2'; a device of the plan is one of its devices.
        cache_dir: folder that keeps what was compiled, or None.

    Returns:
        Text that says which route was compiled, and puts the planner's and the compiler's figures side by side.

    Raises:
        ValueError: the topology is unknown, micro-batches differ in size, or the layers are not enough alike.
        TpuCompileError: the compiler is not installed, or failed.
    """
    tpu_topologies.check(topology)
    params, sentence = _route(planned.params, topology)
    is_one_program = params.task.body.tpu_route == tpu_system.SPMD
    tpu_topologies.check(topology, params.task.body.num_partitions if is_one_program else 1)
    with tpu_compiler.TpuCompiler(cache_dir) as compiler:
        compiled = (_report_of_one_program(planned.plan, params, compiler, topology) if is_one_program
                    else report(planned.plan, compile_plan(planned, compiler, topology), topology))
    return f'{sentence}\n\n{compiled}'


def _route(params, topology):
    """Returns params without 'auto' for the route, and a sentence that says what is compiled."""
    route = params.task.body.tpu_route
    if route == 'auto':
        return tpu_routes.choice(params, tpu_topologies.mesh(topology))
    if route == tpu_system.LOGICAL_CORES:
        return params, (f'tpu_route={route!r}: its program cannot be compiled without a TPU. The figures are those of '
                        "tpu_route='stage_programs'.")
    return params, f'tpu_route={route!r}.'


def _report_of_one_program(plan, params, compiler, topology):
    try:
        return report_of_program(plan, compile_program(params, compiler, topology), topology)
    except tpu_compiler.OutOfTpuMemory as error:
        return f'One program for all cores, by the TPU compiler: {error}'


def compile_plan(planned, compiler, topology, fast=False):
    """Compiles every function of each device.

    Args:
        planned: `planning.Planned` of the params of an experiment.
        compiler: `TpuCompiler`.
        topology: see `compiled_report`.
        fast: see `TpuCompiler.compile`.

    Returns:
        List of `CompiledDevice`.
    """
    params, plan = planned.params, planned.plan
    task, specs, target_specs = _task_and_specs(params)
    body = experiment.body_params(params).Set(partition_by=plan.ends)
    pipe = stage_calls.unallocated_pipeline(body, specs)
    step = stage_calls.step_calls(pipe, specs, target_specs, task.loss)
    return compiled_stages.compile_stages(step, plan.setting.num_slots, compiler, topology, fast)


def compile_program(params, compiler, topology):
    """Compiles the training step as one program for all cores.

    Args:
        params: the experiment's Params, with numbers in the place of what is chosen.
        compiler: `TpuCompiler`.
        topology: see `compiled_report`.

    Returns:
        `CompiledProgram`.
    """
    task, specs, target_specs = _task_and_specs(params)
    body, train = experiment.body_params(params), params.train
    program = spmd_program.lower(
        body, specs, target_specs, task.loss, optimizer.make_optimizer(train), train.clip_gradient_norm_to_value)
    return compiler.compile(program, topology, body.num_partitions, spmd=body.num_partitions > 1)


def _task_and_specs(params):
    with unallocated.unallocated_variables():
        task = params.task.Instantiate()
    specs = [spec(params.input) for spec in (params.input.cls.InputSpec, params.input.cls.TargetSpec)]
    return task, *tf.nest.map_structure(functools.partial(_share_of_replica, params.task.body.num_replicas), specs)


def _share_of_replica(num_replicas, spec):
    return tf.TensorSpec([-(-spec.shape[0] // num_replicas), *spec.shape[1:]], spec.dtype)


def report_of_program(plan, program, topology):
    """Returns a table of the planner's and the compiler's figures for a core, and one sentence.

    Args:
        plan: `Plan`; that of its fullest device is shown.
        program: `CompiledProgram`; what the step replaces counts once, as it does where the step is run.
        topology: what was compiled for.
    """
    total, limit = program.arguments + program.temporaries, tpu_topologies.memory(topology)
    table = tables.table(
        ['planned MiB', 'compiled MiB', 'weights, slots, batch', 'temporaries', 'limit MiB', 'fits', *program.collectives],
        [[max(plan.device_bytes) / _MIB, total / _MIB, program.arguments / _MIB, program.temporaries / _MIB, limit / _MIB,
          'yes' if total <= limit else 'no', *map(len, program.collectives.values())]])
    fits = 'fits' if total <= limit else 'does not fit'
    return f'{table}\n\nOne program for all cores, by the TPU compiler: it {fits} on cores of {topology}.'


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
