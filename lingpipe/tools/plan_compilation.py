"""Comparison of a plan with the figures of the TPU compiler."""

import itertools
from typing import NamedTuple

import tensorflow as tf

from lingpipe import hyperparams, wording
from lingpipe.layers import base_layer
from lingpipe.optimizers import training_optimizer
from lingpipe.partition import layer_memory
from lingpipe.placements import tpu_system
from lingpipe.planner import plans, stage_calls
from lingpipe.spmd import spmd_pipeline, spmd_step
from lingpipe.stages import losses, micro_batches
from lingpipe.tools import stable_hlo, tpu_compiler
from lingpipe.training import experiment, planning

_MIB = 2**20
_KINDS = ('weights', 'slots', 'gradients', 'waiting', 'at_work', 'temporaries')


class CompiledDevice(NamedTuple):
    """The memory of a device at the fullest moment of a step. Sizes are bytes, with the padding that a TPU adds."""

    weights: int
    slots: int  # tensors of the optimizer in addition to the weights
    gradients: int  # sums of weight gradients
    waiting: int  # tensors that are kept for later calls
    at_work: int  # arguments and outputs of the current call, without weights and sums
    temporaries: int  # other memory of its program
    limit: int  # memory that the compiler lets programs use
    moment: str  # the call at the peak, such as '0B3 backward'
    programs: list  # `CompiledProgram` of each function

    @property
    def total(self) -> int:
        """The sum of all kinds of memory, in bytes."""
        return sum(getattr(self, kind) for kind in _KINDS)

    @property
    def fits(self) -> bool:
        """Whether the sum of all kinds of memory is within the limit."""
        return self.total <= self.limit


def compile_stages(step: stage_calls.StepCalls, num_slots: float, compiler: tpu_compiler.TpuCompiler,
                   topology: str, fast: bool = False) -> list[CompiledDevice]:
    """Compile every function of a step for a TPU. Return the memory of each device.

    Raises:
        TpuCompileError: the compiler refused a program.
    """
    programs = _programs(step.calls, compiler, topology, fast)
    sizes = _sizes(step.calls, programs)
    return [_device(step, device, num_slots, programs, sizes, tpu_compiler.memory(topology))
            for device in range(step.schedule.num_devices)]


def _programs(calls, compiler, topology, fast):
    """Compile each distinct program once."""
    programs, by_text = {}, {}
    for call in calls:
        name = _function_name(call)
        if name not in programs:
            text = _lower(call.operation)
            if text not in by_text:
                by_text[text] = compiler.compile(text, topology, fast=fast)
            programs[name] = by_text[text]
    return programs


def _lower(operation):
    function = operation.graph._get_function(operation.get_attr('f').name)  # else its whole library would be copied
    return stable_hlo.lower(
        lambda *arguments: function(*arguments),
        *[tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in operation.inputs])


def _sizes(calls, programs):
    """Return {tensor.ref(): bytes}, with the padding that a TPU adds."""
    sizes = {}
    for call in calls:
        tensors = [*call.operation.inputs, *call.operation.outputs]
        padded = itertools.chain(*stable_hlo.entry_sizes(programs[_function_name(call)].hlo))
        for tensor, size in zip(tensors, padded, strict=True):
            sizes[tensor.ref()] = max(size, sizes.get(tensor.ref(), 0))
    return sizes


def _device(step, device, num_slots, programs, sizes, limit):
    calls = [call for call in step.calls if step.schedule.device_of(call.action.stage) == device]
    own = [values for stage, values in enumerate(step.values) if step.schedule.device_of(stage) == device]
    trainable, state = ({tensor.ref() for values in own for tensor in part(values)}
                        for part in (lambda values: values.weights, lambda values: values.state))
    weights = _total(trainable, sizes)
    lifetimes = _lifetimes(calls, trainable | state)
    own_programs = [programs[_function_name(call)] for call in calls]
    temporaries = [program.temporaries for program in own_programs]
    fullest = max(range(len(calls)), key=_held(lifetimes, sizes, temporaries).__getitem__)
    call = calls[fullest]
    alive = {ref for ref, (first, last) in lifetimes.items() if first <= fullest <= last}
    made = {tensor.ref() for tensor in call.operation.outputs}
    sums = {tensor.ref() for other in calls for tensor in other.sums} & alive - made
    at_work = {tensor.ref() for tensor in [*call.operation.inputs, *call.operation.outputs]} & alive - sums
    return CompiledDevice(
        weights=weights + _total(state, sizes), slots=num_slots * weights, gradients=_total(sums, sizes),
        waiting=_total(alive - sums - at_work, sizes), at_work=_total(at_work, sizes), temporaries=temporaries[fullest],
        limit=limit, moment=f'{call.action} {call.name}',
        programs=list({id(program): program for program in own_programs}.values()))


def _lifetimes(calls, lasting):
    """Return the first and the last call during which each tensor exists."""
    # Each sum begins as zeros. They wait for no call, so they exist from the start.
    lifetimes = {tensor.ref(): (0, 0) for call in calls for tensor in call.sums}
    for index, call in enumerate(calls):
        for tensor in call.operation.outputs:
            lifetimes[tensor.ref()] = index, index
        for tensor in call.operation.inputs:
            if tensor.ref() not in lasting:
                first, _ = lifetimes.get(tensor.ref(), (index, index))
                lifetimes[tensor.ref()] = first, index
    return lifetimes


def _held(lifetimes, sizes, temporaries):
    """Return the bytes in use during each call, without the layers' variables."""
    changes = [0] * (len(temporaries) + 1)
    for ref, (first, last) in lifetimes.items():
        changes[first] += sizes[ref]
        changes[last + 1] -= sizes[ref]
    return [held + extra for held, extra in zip(itertools.accumulate(changes), temporaries)]


def _total(refs, sizes):
    """Return the sum of the sizes of the tensors `refs`, in bytes."""
    # A weight that no call reads counts without padding.
    return sum(sizes.get(ref) or layer_memory.size([ref.deref()]) for ref in refs)


def _function_name(call):
    return call.operation.get_attr('f').name


def compiled_report(planned: planning.Planned, topology: str, cache_dir: str | None = None) -> str:
    """Compare a plan with the figures of the TPU compiler. No TPU is needed.

    Args:
        topology: TPUs to compile for, such as 'v5e:2x2'.

    Returns:
        Text that names the compiled `tpu_route`, and shows the figures of planner and compiler side by side.

    Raises:
        ValueError: the params cannot be compiled for the topology.
        TpuCompileError: the compiler is not installed, or failed.
    """
    tpu_compiler.check_room(topology, planned.params.task.body.num_partitions, planned.params.task.body.num_replicas)
    params, sentence = _route(planned.params, topology)
    is_one_program = params.task.body.tpu_route == tpu_system.SPMD
    with tpu_compiler.TpuCompiler(cache_dir) as compiler:
        try:
            if is_one_program:
                compiled = report_of_program(planned.plan, compile_program(params, compiler, topology), topology)
            else:
                compiled = report(planned.plan, compile_plan(planned, compiler, topology), topology)
        except tpu_compiler.OutOfTpuMemory as error:
            compiled = f'By the TPU compiler it does not fit: {error}'
    return f'{sentence}\n\n{compiled}'


def _route(params, topology):
    """Return the params to compile with, and a sentence that says which `tpu_route` is compiled."""
    mesh, sentence = tpu_compiler.mesh(topology), f'tpu_route={params.task.body.tpu_route!r}.'
    tpu_system.validate_route(params, 'train')  # with the calls below, refuses what training would refuse
    if params.task.body.tpu_route == 'auto':
        chosen, sentence = tpu_system.choice(params, mesh)
    else:
        chosen = tpu_system.resolved(params, 'train', mesh)
    if chosen.task.body.tpu_route == tpu_system.LOGICAL_CORES:
        return params, (f"{sentence[:-1]}: its program is not compiled here. The figures are for "
                        "tpu_route='stage_programs'.")
    return chosen, sentence


def compile_plan(planned: planning.Planned, compiler: tpu_compiler.TpuCompiler, topology: str,
                 fast: bool = False) -> list[CompiledDevice]:
    """Compile every function of a plan. See `compile_stages`."""
    task, specs, target_specs = _task_and_specs(planned.params)
    pipe = stage_calls.unallocated_pipeline(
        experiment.body_params(planned.params).Set(partition_by=planned.plan.ends), specs)
    step = stage_calls.step_calls(pipe, specs, target_specs, task.loss_and_metrics)
    return compile_stages(step, planned.plan.setting.num_slots, compiler, topology, fast)


def compile_program(params: hyperparams.Params, compiler: tpu_compiler.TpuCompiler,
                    topology: str) -> tpu_compiler.CompiledProgram:
    """Compile an experiment's training step as one program for all cores. No param may be 'auto'.

    Raises:
        ValueError: the step cannot be one program, for example because too few layers are equal.
    """
    task, input_specs, target_specs = _task_and_specs(params)
    p, train = experiment.body_params(params), params.train
    pipe = stage_calls.unallocated_pipeline(p, input_specs)
    pipeline = spmd_pipeline.of_layer(pipe, input_specs, is_partitioned=p.num_partitions > 1)
    optimizer = training_optimizer.make_optimizer(train)
    with base_layer.unallocated_variables():
        step = spmd_step.SpmdStep(
            pipeline, losses.as_metrics(task.loss_and_metrics), optimizer, p.random_seed or 0,
            train.clip_gradient_norm_to_value, moved=training_optimizer.step_function(train.ema_decay))
        state_specs = step.state_specs()
    program = stable_hlo.lower(step, state_specs, input_specs, target_specs)
    return compiler.compile(program, topology, p.num_partitions, spmd=p.num_partitions > 1)


def _task_and_specs(params):
    with base_layer.unallocated_variables():
        task = params.task.Instantiate()
    specs = [spec(params.input) for spec in (params.input.cls.InputSpec, params.input.cls.TargetSpec)]
    num_rows = micro_batches.most_rows(tf.nest.flatten(specs)[0].shape[0], params.task.body.num_replicas)
    return task, *micro_batches.specs_of(specs, num_rows)


def report_of_program(plan: plans.Plan, program: tpu_compiler.CompiledProgram, topology: str) -> str:
    """Compare planned and compiled memory of the fullest core, in a table and one sentence."""
    # Tensors that the step replaces are counted once, because their memory is reused.
    total, limit = program.arguments + program.temporaries, tpu_compiler.memory(topology)
    table = wording.table(
        ['planned MiB', 'compiled MiB', 'weights, slots, batch', 'temporaries', 'limit MiB', 'fits',
         *program.collectives],
        [[max(plan.device_bytes) / _MIB, total / _MIB, program.arguments / _MIB, program.temporaries / _MIB,
          limit / _MIB, 'yes' if total <= limit else 'no', *map(len, program.collectives.values())]])
    fits = 'fits' if total <= limit else 'does not fit'
    return f'{table}\n\nOne program for all cores, by the TPU compiler: it {fits} on cores of {topology}.'


def report(plan: plans.Plan, devices: list[CompiledDevice], topology: str) -> str:
    """Compare planned and compiled memory of each device, in a table and one sentence."""
    header = ['device', 'planned MiB', 'compiled MiB', *(kind.replace('_', ' ') for kind in _KINDS), 'limit MiB',
              'fits', 'fullest in']
    rows = [[index, planned / _MIB, device.total / _MIB, *(getattr(device, kind) / _MIB for kind in _KINDS),
             device.limit / _MIB, 'yes' if device.fits else 'no', device.moment]
            for index, (planned, device) in enumerate(zip(plan.device_bytes, devices))]
    return f'{wording.table(header, rows)}\n\n{_sentence(devices, topology)}'


def _sentence(devices, topology):
    full = [index for index, device in enumerate(devices) if not device.fits]
    if not full:
        return f'By the TPU compiler it fits on devices of {topology}.'
    return (f'By the TPU compiler device{"s" if len(full) > 1 else ""} {", ".join(map(str, full))} of {topology} '
            "cannot hold it. Use smaller micro-batches, recompute='layer', or more partitions.")
