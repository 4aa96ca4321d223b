"""The TPU system of a program, and the placement of partitions on cores."""

import math
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from lingpipe import hyperparams
from lingpipe.devices import collectives
from lingpipe.layers import batch_normalization
from lingpipe.optimizers import optimizer_parts, training_optimizer
from lingpipe.placements import logical_cores, spmd_cores, tpu_replicas
from lingpipe.planner import resolution, stage_calls
from lingpipe.spmd import spmd_pipeline, stage_map
from lingpipe.stages import micro_batches
from lingpipe.training import experiment, planning

LOCAL = 'local'
_JOB = 'chief'
LOGICAL_CORES, SPMD = 'logical_cores', 'spmd'
_AUTO, _STAGE_PROGRAMS = 'auto', 'stage_programs'


class TpuSystem(NamedTuple):
    """An initialised TPU system."""

    resolver: Any  # tf.distribute.cluster_resolver.TPUClusterResolver
    topology: Any  # tf.tpu.experimental.Topology

    @property
    def devices(self) -> Any:
        """TensorFlow's names of the cores, chip by chip."""
        return [device.name for device in tf.config.list_logical_devices('TPU')]


def start_tpu_system(name: str = LOCAL, address: str | None = None) -> TpuSystem:
    """Connect to a TPU system and initialise it. This clears the memory of the system.

    Args:
        name: name of a Cloud TPU, or address of a TPU worker, such as grpc://10.0.0.2:8470. 'local': the TPU of this
            machine.
        address: 'host:port' at which the workers reach this process; None: the workers do not need to reach it.

    Raises:
        RuntimeError: the system could not be started. The message says what to check.
    """
    try:
        job = {'coordinator_name': _JOB, 'coordinator_address': address} if address else {}
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=name, **job)
        if name != LOCAL:
            tf.config.experimental_connect_to_cluster(resolver, job_name=_JOB if address else 'localhost')
        system = TpuSystem(resolver, tf.tpu.experimental.initialize_tpu_system(resolver))
    except (tf.errors.OpError, OSError, ValueError, RuntimeError) as error:
        raise RuntimeError(_what_to_check(name, error)) from error
    if not system.devices:
        raise RuntimeError(_what_to_check(name, 'it has no cores'))
    return system


def start_and_place(params: Any, mode: Any, name: str = LOCAL, address: str | None = None) -> Any:
    """Start a TPU system. Return params for this system, and the `Placement` for these params."""
    params = with_defaults(params)
    validate_route(params, mode)
    system = start_tpu_system(name, address)
    if resolution.is_open(params.task.body):
        params = planning.resolved(params, len(system.devices))
        validate_route(params, mode)
    params = resolved(params, mode, [int(size) for size in system.topology.mesh_shape])
    return params, place(params.task.body, system)


def _what_to_check(name, error):
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    if name == LOCAL:
        return (f"--tpu=local: no TPU of this machine could be started ({reason}). Check that the machine is a TPU VM "
                "(it has /dev/accel0 or /dev/vfio/0), that TensorFlow is the build for TPUs (tensorflow-tpu, with the "
                'libtpu that its release notes name), and that no other program holds the TPU; or run with '
                '--device=cpu.')
    return (f'--tpu={name}: this TPU could not be reached ({reason}). Check that it exists and is READY (gcloud '
            'compute tpus tpu-vm list --zone=ZONE), that this machine is in its project and network with access to the '
            'metadata server, and that its TensorFlow has the version of this one; on the TPU VM itself use '
            '--tpu=local.')


def place(body_params: hyperparams.Params, system: TpuSystem) -> experiment.Placement:
    """Return the `Placement` for `tpu_route`. Raise ValueError if the system has too few cores."""
    if body_params.tpu_route == LOGICAL_CORES:
        return logical_cores.LogicalCores(system.resolver, system.topology, body_params.num_partitions)
    if body_params.tpu_route == SPMD:
        return spmd_cores.SpmdCores(system.resolver, system.topology, body_params.num_partitions)
    num_partitions, num_replicas = body_params.num_partitions, body_params.num_replicas
    if num_replicas * num_partitions > len(system.devices):
        times = f' times num_replicas={num_replicas}' if num_replicas > 1 else ''
        raise ValueError(f'num_partitions={num_partitions}{times} is more than the {len(system.devices)} cores of the '
                         f'TPU system. Set {"their product" if times else "it"} to {len(system.devices)} or less.')
    return experiment.Placement(system.devices[:num_replicas * num_partitions])


def validate(body_params: hyperparams.Params, mode: str) -> None:
    """Raise ValueError if `mode` cannot run on TPUs with these params. Call this function before `start_tpu_system`."""
    p = body_params
    if p.tpu_route in (LOGICAL_CORES, SPMD) and mode != 'train':
        raise ValueError(f"tpu_route={p.tpu_route!r} is for --mode=train only, but --mode={mode} was given. Add "
                         "--model_params_override=\"task.body.tpu_route='stage_programs'\", or --device=cpu.")
    if mode == 'generate':
        raise ValueError('--mode=generate does not run on TPUs: a text grows step by step, and they want fixed shapes. '
                         'Add --device=cpu.')
    if p.devices is not None:
        raise ValueError(f'task.body.devices={list(p.devices)} names devices, but on a TPU the partitions go to the '
                         'cores in their order. Set it to None, or add --device=cpu.')
    if p.partition_by == 'time':
        raise ValueError("task.body.partition_by='time' measures layers, which does not run on TPUs. Set it to "
                         "'flops'.")


def with_defaults(params: hyperparams.InstantiableParams) -> hyperparams.InstantiableParams:
    """Return params with 'mixed_bfloat16' as the default precision. Raise ValueError for 'mixed_float16'."""
    policy = params.task.body.dtype_policy or params.task.dtype_policy
    if policy == 'mixed_float16':
        raise ValueError("dtype_policy='mixed_float16' is not for TPUs. Set it to 'mixed_bfloat16' or 'float32'.")
    if policy:
        return params
    params = params.Copy()
    params.task.dtype_policy = 'mixed_bfloat16'
    return params


def validate_route(params: hyperparams.Params, mode: str) -> None:
    """Raise ValueError if `mode` cannot use the route that the field `tpu_route` names."""
    p = params.task.body
    if resolution.is_open(p) or mode == 'eval':  # nothing is checked while fields are 'auto'
        return
    if p.tpu_route == SPMD:
        _check(params)
    else:
        _check_groups(params, p.num_replicas, p.tpu_route if mode == 'train' else _STAGE_PROGRAMS, mode)


def resolved(params: hyperparams.Params, mode: str, mesh: list[int]) -> hyperparams.Params:
    """Return params for a system. In training, tpu_route='auto' becomes a route, and the reason is printed.

    'auto' tries the routes in the order 'spmd', 'logical_cores', 'stage_programs'.

    Args:
        mesh: sizes of the system `[x, y, z, cores of a chip]`.

    Raises:
        ValueError: the given route cannot train the model, or no route can.
    """
    route = params.task.body.tpu_route
    if route == LOGICAL_CORES:
        _check_groups(params, _room(params, mesh), route)
        return _with_all_replicas(params, mesh)
    if route == SPMD:
        return _with_spmd(params, mesh)
    if route != _AUTO or mode != 'train':
        return params
    chosen, sentence = choice(params, mesh)
    print(sentence, flush=True)
    return chosen


def choice(params: hyperparams.Params, mesh: list[int]) -> tuple:
    """Return params with a route instead of 'auto', and a sentence with the reason."""
    try:
        chosen, reason = _with_spmd(params, mesh), 'One program for all cores.'
    except ValueError as error:
        chosen, reason = _without_spmd(params, mesh, error)
    return chosen, f"'auto': tpu_route={chosen.task.body.tpu_route!r}. {reason}"


def _without_spmd(params, mesh, error):
    p, num_cores, reason = params.task.body, math.prod(mesh), f"'spmd' would not do: {error}"
    fills = p.num_replicas > 1 and p.num_partitions * p.num_replicas == num_cores
    if fills and p.num_partitions == 1:
        return _changed(params, LOGICAL_CORES, 1), 'One program for all replicas, a core for each.'
    if fills and _groups(params):
        return _changed(params, LOGICAL_CORES, 1), (
            f"{reason} 'stage_programs' cannot share statistics between replicas. libtpu 0.0.35 and newer refuse this "
            'program.')
    try:
        _check_groups(params, p.num_replicas, _STAGE_PROGRAMS)
    except ValueError as other:
        raise ValueError(f"tpu_route='auto' finds no route on {num_cores} cores. {reason} {other}") from other
    return _changed(params, _STAGE_PROGRAMS, p.num_replicas), reason


def _changed(params, route, num_replicas):
    params = params.Copy()
    params.task.body.Set(tpu_route=route, num_replicas=num_replicas)
    return params


def _room(params, mesh):
    """Return how many replicas fit on a system."""
    return math.prod(mesh) // params.task.body.num_partitions


def _with_all_replicas(params, mesh):
    """Return params for one program that runs on as many replicas as fit."""
    p, room = params.task.body, _room(params, mesh)
    if p.num_replicas not in (1, room):
        raise ValueError(
            f'num_replicas={p.num_replicas} does not go with tpu_route={p.tpu_route!r}, whose replicas fill the '
            f'system: it has room for {room} of {p.num_partitions} cores. Set it to {room}, or to 1 for as many as '
            'there is room for.')
    return _changed(params, p.tpu_route, 1)  # num_replicas=1: one program is built


def _with_spmd(params, mesh):
    is_choosing = params.task.body.tpu_route == _AUTO
    if is_choosing and params.task.body.num_partitions < 2:
        raise ValueError('there is one partition only.')
    params = _with_all_replicas(params, mesh)
    _check_replicas(params, mesh)
    pipeline = _check(params, is_choosing)
    params.task.body.Set(tpu_route=SPMD, partition_by=pipeline.ends)
    return params


def _check(params, is_choosing=False):
    """Build the SPMD pipeline without weights, to check that the pipeline can run."""
    spmd_cores.validate(params.task.body)
    specs, pipe = experiment.input_spec(params), _built(params)
    pipeline = spmd_pipeline.of_layer(pipe, specs, is_partitioned=params.task.body.num_partitions > 1)
    if is_choosing:
        _refuse_repeated_work(pipe, pipeline)
    with tf.device('CPU:0'):  # a TPU that is not initialised cannot hold variables
        weight = keras.Variable(np.zeros([2, 3]))
        optimizer_parts.PureOptimizer(training_optimizer.make_optimizer(params.train), [weight])
    _trace_forward(pipeline, specs, params.task.body.num_micro_batches)
    return pipeline


def _built(params):
    body = experiment.body_params(params).Set(partition_by='flops')
    return stage_calls.unallocated_pipeline(body, experiment.input_spec(params))


def _groups(params):
    return batch_normalization.group_sizes(_built(params).stack)


def _check_groups(params, num_replicas, route, mode='train'):
    """Raise ValueError if a batch norm layer must share its statistics between replicas, but cannot."""
    for group_size, name in _groups(params).items() if num_replicas > 1 else ():
        if route == _STAGE_PROGRAMS:
            remedy = ("Take as many replicas as the system has room for, with tpu_route='auto' or 'logical_cores'"
                      if mode == 'train' else 'Give --device=cpu')
            raise ValueError(
                f'Layer {name!r} shares statistics between replicas (group_size={group_size}). tpu_route='
                f'{_STAGE_PROGRAMS!r} runs each of num_replicas={num_replicas} as programs of its own, which cannot '
                f'wait for each other. {remedy}, or set group_size=1.')
        collectives.equal_groups(group_size, num_replicas)


def _refuse_repeated_work(pipe, pipeline):
    """Raise ValueError if most of a core's work is outside the stages."""
    if pipeline.num_left_out:
        raise ValueError(f'it would leave {pipeline.num_left_out} of the layers that are alike to all cores.')

    def is_divided(position):
        dimensions = [pipeline.outer_dimension(each.shape) for each in pipe.stack[position].trainable_variables]
        return position in staged or any(dimension is not None for dimension in dimensions)

    staged, flops = range(len(pipe.stack))[pipeline.staged], [analysis.flops.total for analysis in pipe.analyses]
    # All cores repeat the work of a layer outside the stages, unless the layer's weights are sharded.
    work = [each / pipeline.num_cores if is_divided(position) else each for position, each in enumerate(flops)]
    of_stages = sum(work[pipeline.staged])
    repeated = sum(work) - of_stages
    if repeated > of_stages:
        raise ValueError(f'{repeated / (repeated + of_stages):.0%} of the work of each core would be that of layers '
                         'outside of the stages, which all cores repeat.')


def _trace_forward(pipeline, input_specs, num_rows):
    """Trace the forward pass, to refuse layers that one program cannot run."""
    def forward(values, x):
        return pipeline.metrics(lambda targets, outputs: {}, values, x, (), tf.zeros([2], tf.int64))

    tf.function(forward, autograph=False).get_concrete_function(
        pipeline.variables.map(stage_map.spec_of_row, micro_batches.specs_of_tensors),
        micro_batches.specs_of(input_specs, num_rows))


def _check_replicas(params, mesh):
    p, replicas = params.task.body, _room(params, mesh)
    tpu_replicas.computation_shape(mesh, p.num_partitions)
    size = tf.nest.flatten(experiment.input_spec(params))[0].shape[0]
    if size % (replicas * p.num_micro_batches):
        raise ValueError(
            f'batch_size={size} is not a multiple of {replicas} replicas times '
            f"num_micro_batches={p.num_micro_batches}, which tpu_route='spmd' needs with num_partitions="
            f'{p.num_partitions} on {math.prod(mesh)} cores. Set batch_size '
            f"to a multiple of {replicas * p.num_micro_batches}, or tpu_route to 'stage_programs'.")
