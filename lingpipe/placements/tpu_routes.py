"""Which programs train a model on a TPU system: what tpu_route='spmd' can run, and what 'auto' stands for."""

import math

import keras
import numpy as np
import tensorflow as tf

from lingpipe.optimizers import pure_optimizer
from lingpipe.placements import spmd_cores, tpu_replicas, tpu_system
from lingpipe.planner import resolution, stage_calls
from lingpipe.spmd import spmd_pipeline
from lingpipe.training import experiment, optimization

_AUTO, _STAGE_PROGRAMS = 'auto', 'stage_programs'


def validate(params):
    """Raises ValueError, before a TPU system is started, where tpu_route='spmd' is set for what cannot be trained so.

    Args:
        params: the experiment's Params; what is 'auto' can be judged later only, by `resolved`.
    """
    if params.task.body.tpu_route == tpu_system.SPMD and not resolution.is_open(params.task.body):
        _check(params)


def resolved(params, mode, mesh):
    """Returns params with a route in the place of 'auto', and says which and why.

    It is 'spmd' where that trains the model, K >= 2 divides the layers that are alike, and the replicas divide the batch. With
    'spmd' the cut becomes that of its stages.

    Args:
        params: the experiment's Params, with numbers of partitions and micro-batches.
        mode: value of --mode.
        mesh: sizes of the system `[x, y, z, cores of a chip]`.

    Raises:
        ValueError: tpu_route='spmd' is set for what cannot be trained so.
    """
    route = params.task.body.tpu_route
    if route == tpu_system.SPMD:
        return _with_spmd(params, mesh)
    if route != _AUTO or mode != 'train':
        return params
    chosen, sentence = choice(params, mesh)
    print(sentence, flush=True)
    return chosen


def choice(params, mesh):
    """Returns params with the route that training takes in the place of 'auto', and a sentence that says which and why.

    Args:
        params: the experiment's Params, with numbers of partitions and micro-batches and tpu_route='auto'.
        mesh: sizes of the system `[x, y, z, cores of a chip]`.
    """
    try:
        chosen, reason = _with_spmd(params, mesh), 'One program for all cores.'
    except ValueError as error:
        chosen, reason = params.Copy(), f"'spmd' would not do: {error}"
        chosen.task.body.tpu_route = _STAGE_PROGRAMS
    return chosen, f"'auto': tpu_route={chosen.task.body.tpu_route!r}. {reason}"


def _with_spmd(params, mesh):
    is_choosing = params.task.body.tpu_route == _AUTO
    if is_choosing and params.task.body.num_partitions < 2:
        raise ValueError('there is one partition only.')
    if params.task.body.num_replicas > 1:
        raise ValueError(f'num_replicas={params.task.body.num_replicas} is set, and one program has as many as find room.')
    _check_replicas(params, mesh)
    pipeline = _check(params)
    if is_choosing and pipeline.num_left_out:
        raise ValueError(f'it would leave {pipeline.num_left_out} of the layers that are alike to all cores.')
    params = params.Copy()
    params.task.body.Set(tpu_route=tpu_system.SPMD, partition_by=pipeline.ends)
    return params


def _check(params):
    """Builds what would run, with nothing allocated.

    Returns:
        The `SpmdPipeline`.
    """
    spmd_cores.validate(params.task.body, params.train)
    specs = params.input.cls.InputSpec(params.input)
    body = experiment.body_params(params).Set(partition_by='flops')
    pipe = stage_calls.unallocated_pipeline(body, specs)
    pipeline = spmd_pipeline.of_layer(pipe, specs, is_partitioned=body.num_partitions > 1)
    with tf.device('CPU:0'):  # a TPU that has not been started yet takes no variables
        pure_optimizer.PureOptimizer(optimization.make_optimizer(params.train), [keras.Variable(np.zeros([2, 3]))])
    _trace_forward(pipeline, specs, body.num_micro_batches)
    return pipeline


def _trace_forward(pipeline, input_specs, num_rows):
    """That a layer adds a loss shows only when it is called."""
    x = tf.nest.map_structure(lambda spec: tf.TensorSpec([num_rows, *spec.shape[1:]], spec.dtype), input_specs)

    def forward(stages, outer, x):
        return pipeline.metrics(lambda targets, outputs: {}, stages, outer, x, (), tf.zeros([2], tf.int64))

    tf.function(forward, autograph=False).get_concrete_function(*pipeline.value_specs(), x)


def _check_replicas(params, mesh):
    p, mesh = params.task.body, list(map(int, mesh))
    tpu_replicas.computation_shape(mesh, p.num_partitions)
    replicas = math.prod(mesh) // p.num_partitions
    size = tf.nest.flatten(params.input.cls.InputSpec(params.input))[0].shape[0]
    if size % (replicas * p.num_micro_batches):
        raise ValueError(
            f'batch_size={size} is not a multiple of {replicas} replicas times num_micro_batches={p.num_micro_batches}, which '
            f"tpu_route='spmd' needs with num_partitions={p.num_partitions} on {math.prod(mesh)} cores. Set batch_size to a multiple "
            f"of {replicas * p.num_micro_batches}, or tpu_route to 'stage_programs'.")
