"""Tracing of a training step, to find its calls of stage functions. Nothing is allocated, and no step runs."""

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from lingpipe import hyperparams
from lingpipe.layers import base_layer
from lingpipe.pipeline import executor, gpipe_layer
from lingpipe.schedules import schedule_type
from lingpipe.schedules.timeline import Action
from lingpipe.stages import losses, stage_layers
from lingpipe.stages.stage_program import ActionResult

# Positions at which methods of `StageProgram` take the sums of weight gradients.
_PLACE_OF_SUMS = {'backward': 2, 'backward_segment': 3, 'backward_weights': 1}


class Call(NamedTuple):
    """An operation in a step's graph that calls a function of a stage."""

    action: Action
    name: str  # method of `StageProgram` that built it, such as 'recompute'
    operation: tf.Operation
    sums: list  # sums of weight gradients, which are among its arguments


class StepCalls(NamedTuple):
    """All calls of a step. Calls on the same device are in the schedule's order."""

    schedule: schedule_type.Schedule
    calls: list[Call]
    values: list[stage_layers.Variables]  # for each stage, its variables as tensors of the graph


def unallocated_pipeline(p: hyperparams.InstantiableParams, input_specs: Any) -> gpipe_layer.GPipeLayer:
    """Build a pipeline for XLA to compile, without allocating its weights.

    Args:
        p: `GPipeLayer.Params()` without 'auto'.
        input_specs: nest of `tf.TensorSpec`, one for each input tensor `[batch, ...]` of a replica.
    """
    p = p.Copy().Set(devices=['CPU:0'] * p.num_partitions, jit_compile=True, memory_limit=None,
                     random_seed=p.random_seed or 0, num_replicas=1)
    with base_layer.unallocated_variables():
        pipe = gpipe_layer.GPipeLayer(p)
        pipe.build_from_specs(input_specs, load_weights=False)
    return pipe


def step_function(pipe: gpipe_layer.GPipeLayer, loss: Callable, observer: Any = None) -> Callable:
    """Return a function `(inputs, targets, values) -> (gradient sums, metrics)` that runs a step without its update.

    Args:
        loss: function `(targets, outputs) -> {name: (mean, weight)}`, as tasks define it.
    """
    metrics = losses.as_metrics(loss)

    def step(inputs, targets, values):  # values: for each stage, `Variables` of tensors
        options = executor.PassOptions(
            pipe.schedule, pipe.grid.seed_and_step(0, True), True, observer=observer,
            loss=lambda targets, outputs: metrics(targets, pipe.pack_outputs(outputs)))
        batch = pipe.grid.mini_batch(options, values, inputs, targets)
        batch.run()
        sums = batch.take_sums()
        return sums.weight_gradients, sums.metrics

    return step


def value_specs(pipe: gpipe_layer.GPipeLayer) -> list[stage_layers.Variables]:
    """Return the shapes and dtypes of all variables: for each stage, a `Variables` of `tf.TensorSpec`."""
    return [
        stage.variables().map(lambda variable: tf.TensorSpec(variable.shape, variable.dtype)) for stage in pipe.stages]


def step_calls(pipe: gpipe_layer.GPipeLayer, input_specs: Any, target_specs: Any, loss: Callable) -> StepCalls:
    """Trace a step with specs `[batch, ...]`, and return the calls that it makes. See `step_function` for `loss`."""
    recorder, traced = _Recorder(), []
    step = step_function(pipe, loss, recorder)

    def trace(inputs, targets, values):
        traced.append(values)
        step(inputs, targets, values)

    tf.function(trace, autograph=False).get_concrete_function(input_specs, target_specs, value_specs(pipe))
    return StepCalls(pipe.schedule, recorder.calls, traced[0])


class _Recorder:
    """Observer that records the calls of an `executor.Execution`."""

    def __init__(self):
        self.calls = []

    def around(self, replica: int, action: Action, build: Callable[..., ActionResult],
               *arguments: Any) -> ActionResult:
        """Run `build`, and record the operation that it adds to the graph, if any."""
        done = build(*arguments)
        if done.operation is not None:
            place = _PLACE_OF_SUMS.get(build.__name__)
            self.calls.append(Call(action, build.__name__, done.operation, [] if place is None else arguments[place]))
        return done
