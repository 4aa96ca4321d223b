"""A plan beside what the TPU compiler makes of it."""

import functools

import tensorflow as tf

from lingpipe import text_tables
from lingpipe.layers import unallocated
from lingpipe.partition import layer_analysis
from lingpipe.placements import tpu_routes, tpu_system
from lingpipe.planner import stage_calls
from lingpipe.spmd import spmd_pipeline, spmd_step, stage_map
from lingpipe.stages import losses
from lingpipe.tools.tpu_compile import compiled_stages, tpu_compiler, tpu_hlo
from lingpipe.training import experiment, optimization

_MIB = 2**20
_KINDS = ('weights', 'slots', 'gradients', 'waiting', 'at_work', 'temporaries')


def lower_spmd(body_params, input_specs, target_specs, loss, optimizer, clip_gradient_norm_to_value=0.0):
    """Translates the step for all cores of one pipeline.

    Args:
        body_params: `GPipeLayer.Params()`; K, M and recomputation are those of the program.
        input_specs: nest of `tf.TensorSpec` `[batch, ...]` of the input.
        target_specs: nest of `tf.TensorSpec` `[batch, ...]` of what the loss compares with.
        loss: function `(targets, outputs) -> {name: (mean, weight)}`, as tasks have it.
        optimizer: `keras.optimizers.Optimizer` without slots.
        clip_gradient_norm_to_value: see `spmd_step.SpmdStep`.

    Returns:
        The program, see `tpu_hlo.lower`; with one partition it is for one device.

    Raises:
        ValueError: the layers are not enough alike; the message says what to do.
    """
    p = body_params
    whole = p.Copy().Set(num_partitions=1, num_virtual_stages=1, schedule='gpipe', partition_by='flops')
    pipe = stage_calls.unallocated_pipeline(whole, input_specs)
    layer_params = layer_analysis.named_layer_params(p.layers, p.dtype_policy)
    specs = [input_specs, *[each.outputs for each in pipe.analyses]]
    pipeline = spmd_pipeline.SpmdPipeline(
        pipe.stack, stage_map.longest_run(layer_params, specs), p.num_partitions, p.num_micro_batches, p.recompute,
        is_partitioned=p.num_partitions > 1)
    with unallocated.unallocated_variables():
        step = spmd_step.SpmdStep(
            pipeline, losses.as_metrics(loss), optimizer, p.random_seed or 0, clip_gradient_norm_to_value)
        state_specs = step.state_specs()
    return tpu_hlo.lower(step, state_specs, input_specs, target_specs)


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
    tpu_compiler.check_topology(topology)
    params, sentence = _route(planned.params, topology)
    is_one_program = params.task.body.tpu_route == tpu_system.SPMD
    tpu_compiler.check_topology(topology, params.task.body.num_partitions if is_one_program else 1)
    with tpu_compiler.TpuCompiler(cache_dir) as compiler:
        compiled = (_report_of_one_program(planned.plan, params, compiler, topology) if is_one_program
                    else report(planned.plan, compile_plan(planned, compiler, topology), topology))
    return f'{sentence}\n\n{compiled}'


def _route(params, topology):
    """Returns params without 'auto' for the route, and a sentence that says what is compiled."""
    route = params.task.body.tpu_route
    if route == 'auto':
        return tpu_routes.choice(params, tpu_compiler.topology_mesh(topology))
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
    program = lower_spmd(
        body, specs, target_specs, task.loss, optimization.make_optimizer(train), train.clip_gradient_norm_to_value)
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
    total, limit = program.arguments + program.temporaries, tpu_compiler.topology_memory(topology)
    table = text_tables.table(
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
    return f'{text_tables.table(header, rows)}\n\n{_sentence(devices, topology)}'


def _sentence(devices, topology):
    full = [index for index, device in enumerate(devices) if not device.fits]
    if not full:
        return f'By the TPU compiler it fits on devices of {topology}.'
    return (f'By the TPU compiler device{"s" if len(full) > 1 else ""} {", ".join(map(str, full))} of {topology} cannot hold it. '
            "Use smaller micro-batches, recompute='layer', or more partitions.")
