"""The actions of a schedule, built over the devices of one replica as operations of one graph.

To build an action is to add its operations to the current graph. They run later, when the graph runs.
"""

import copy
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from lingpipe import schedules
from lingpipe.devices import collectives, device_kinds
from lingpipe.pipeline import gradient_flow, stage_wiring, step_state
from lingpipe.stages import boundary, losses, micro_batches, outside_state, stage_layers, stage_program
from lingpipe.stages.stage import Stage

ALL_KINDS = (schedules.FORWARD, schedules.BACKWARD, schedules.WEIGHT)


class Work(NamedTuple):
    """What all replicas do with one mini-batch.

    Attributes:
        schedule: the `Schedule` of a full batch of one replica.
        seed_and_step: int64 tensor `[2]`, on which all random numbers depend.
        training: Python boolean.
        recompute: 'none', 'selective', 'stage' or 'layer'.
        loss: function `(targets, outputs) -> {name: (sum, weight)}` that runs on the last stage, or None.
        input_gradients_needed: whether gradients of the pipeline's inputs are needed.
        observer: builds the calls instead of the execution, such as `action_times.ActionTimes`, or None. Its
            `around(replica, action, build, *arguments)` returns an `ActionResult`, as `build(*arguments)` does.
        loss_scale: scalar tensor by which all gradients of the mean loss are multiplied, or None.
    """

    schedule: schedules.Schedule
    seed_and_step: tf.Tensor
    training: bool
    recompute: str
    loss: Any = None
    input_gradients_needed: bool = False
    observer: Any = None
    loss_scale: Any = None


class Share(NamedTuple):
    """The micro-batches of a mini-batch that one replica works on.

    Attributes:
        parts: list of nests of tensors `[micro_batch, ...]`, the inputs of the pipeline.
        targets: for each of them, the nest of tensors that the loss compares with; () if there is no loss.
        rows: for each of them, its number of rows; 0 if it is empty and has one row that does not count.
        first_micro_batch: number of the first of them in the mini-batch; other replicas have the earlier ones.
        replica: number of the replica.
        equal_rows: whether the micro-batches of all replicas are known to have the same number of rows.
        is_whole_batch: whether there is one micro-batch, and no other replica has a part of the mini-batch.
    """

    parts: list
    targets: list
    rows: micro_batches.RowCounts
    first_micro_batch: int
    replica: int
    equal_rows: bool
    is_whole_batch: bool


class Execution:
    """Runs one replica's share of a mini-batch through the stages.

    Every device runs its actions in schedule order, and each action waits for the previous one: this limits memory.
    Only boundary tensors and their gradients cross between devices::

        device 0   F0 ─> F1 ─> F2 ......... B2 ─> B1 ─> B0
                   │     │     │            ^     ^     ^        ─>  order on a device (control edge)
                   v     v     v            │     │     │        │   boundary tensor, or its gradient
        device 1         F0 ─> F1 ─> F2 ─> B2 ─> B1 ─> B0

    A tensor goes directly from the stage that makes it to each stage that reads it, and the gradients that come back
    from these are summed. Recomputation waits for its turn on the device, but not for gradients: it fills time that a
    device would spend waiting. If XLA compiles a stage, recomputation is a part of its backward function, because
    XLA frees residuals after their last use only within one program. A split backward pass has two programs, so it
    recomputes ahead of them.

    Args:
        stages: list of `Stage`s.
        work: `Work`.
        share: `Share`.
        values: for each stage its `Variables`, as tensors.

    Attributes:
        stages: list of `Stage`s.
        siblings: list of the executions that share the mini-batch, including this one.
        rows: for each micro-batch, its number of rows: an integer if it is known, else a tensor.
    """

    def __init__(self, stages: list[Stage], work: Work, share: Share,
                 values: list[stage_layers.Variables]) -> None:
        self.stages, self._work, self._share = stages, work, share
        self._schedule = schedule = work.schedule.for_num_micro_batches(len(share.parts))
        inputs = [boundary.unpack(nest) for nest in share.parts]
        self.rows = share.rows
        self.siblings = [self]
        self._outputs = {(-1, m): each for m, each in enumerate(inputs)}
        self._positions = micro_batches.Positions(
            work.seed_and_step, share.rows, stages[0].device, share.first_micro_batch, share.replica)
        self._by_layer = work.recompute == 'layer' and bool(schedule.backwards())
        self._kept = schedule.backwards() if work.recompute == 'none' else schedule.backwards_after_own_forward()
        specs = micro_batches.specs((inputs[0], share.targets[0]), share.equal_rows)
        self._wiring = stage_wiring.trace(
            stages, specs, boundary.structure_of(share.parts[0]), work.loss, work.training, self._by_layer,
            share.is_whole_batch)
        self._programs = self._wiring.programs
        self._last: dict[str, list[tf.Operation]] = {}
        if any(program.outside_state for program in self._programs):
            check = outside_state.no_empty_micro_batch(self.rows)
            self._last = {stage.device: check for stage in stages}
        self._state = step_state.StepState(stages, self._programs, values)
        self._flows: Any = None
        if schedule.backwards():
            self._flows = gradient_flow.stage_flows(
                self._programs, self._wiring.differentiable_sources, work.input_gradients_needed)
        self._in_flight: dict[tuple[int, int], stage_program.Known] = {}  # (stage, micro-batch): for later actions
        self._metrics: list[dict] = []
        self._losses: dict[int, list] = {}
        self._gradients = gradient_flow.BoundaryGradients()
        self._weight_gradients: list[Any] = [None] * len(stages)

    def refuse_unproven_losses(self) -> None:
        """Raises ValueError if a layer adds a loss that does not follow from the losses of its micro-batches."""
        for stage, are_sums in zip(self.stages, self._wiring.added_sums):
            if None in are_sums:
                names = [layer.name for layer in stage.layers]
                raise ValueError(
                    f'A layer of partition {stage.index} ({", ".join(names[:5])}) adds a loss (add_loss or an activity '
                    'regularizer), and its graph does not show that the loss of a batch is the mean or the sum of the '
                    'losses of its examples, so it cannot be computed exactly over micro-batches. Set '
                    "num_micro_batches=1; or added_losses='averaged' to take the mean over the micro-batches, as is "
                    'usual for the balance of experts.')

    def run(self, kinds: Sequence[str] = ALL_KINDS) -> None:
        """Builds all actions of the given kinds."""
        if schedules.BACKWARD in kinds and self._schedule.backwards():
            self._refuse_python_gradients()
        build = {schedules.FORWARD: self._forward, schedules.BACKWARD: self._backward,
                 schedules.WEIGHT: self._backward_weights}
        for action in self._state.execution_order(self._schedule):
            if action.kind in kinds and (action.kind == schedules.FORWARD or self._flows[action.stage]):
                self._action = action
                build[action.kind](self.stages[action.stage], action.micro_batch)

    def _refuse_python_gradients(self) -> None:
        is_one = self.num_micro_batches == len(self.siblings) == 1
        indices = [] if is_one else [
            index for index, program in enumerate(self._programs) if program.differentiates_python]
        if indices:
            raise ValueError(
                f'A layer or loss of partition {indices[0]} calls tf.py_function, of which TensorFlow can '
                'differentiate only one call at a time, but there are '
                f'{self.num_micro_batches * len(self.siblings)} micro-batches. '
                'Set num_micro_batches and num_replicas to 1; or write operations of TensorFlow, or '
                'tf.numpy_function inside tf.custom_gradient.')

    @property
    def num_micro_batches(self) -> int:
        """Number of micro-batches of this mini-batch."""
        return self._schedule.num_micro_batches

    @property
    def outputs(self) -> list:
        """For each micro-batch, the nest of outputs of the last stage."""
        last = len(self.stages) - 1
        structure = self._programs[last].trace.output_structure
        return [boundary.pack(self._outputs[last, m], structure) for m in range(self.num_micro_batches)]

    @property
    def sums(self) -> micro_batches.Sums:
        """The `micro_batches.Sums` of all actions run so far."""
        last = self.stages[-1].device
        metrics = device_kinds.call(last, micro_batches.add_up, self._metrics)
        losses = list(self.added_losses.values())
        inputs = [self._take_gradients(-1, m) if self._work.input_gradients_needed else []
                  for m in range(self.num_micro_batches)]
        gradients = [self._joined(stage, sums or []) for stage, sums in zip(self.stages, self._weight_gradients)]
        return micro_batches.Sums(metrics, losses, self.weights, gradients, inputs)

    def _joined(self, stage: Stage, sums: list) -> list:
        return [device_kinds.call(stage.device, micro_batches.join_rows, each) if isinstance(each, tuple) else each
                for each in sums]

    @property
    def added_losses(self) -> dict[int, Any]:
        """Dictionary from the index of a stage whose layers add losses to their pair (sum, rows), on the last stage."""
        return {index: device_kinds.call(self.stages[-1].device, micro_batches.add_up, parts)
                for index, parts in self._losses.items()}

    @property
    def weights(self) -> list[list[keras.Variable]]:
        """For each stage, the list of the Keras variables that it sums gradients of."""
        if self._flows is None:
            return [[] for _ in self.stages]
        return [[program.trace.weights[position] for position in flow.weights]
                for program, flow in zip(self._programs, self._flows)]

    @property
    def borrowed(self) -> list[keras.Variable]:
        """List of the Keras variables that some stage reads and no stage owns."""
        return self._state.borrowed_from_outside

    def fork(self) -> 'Execution':
        """Returns a copy that continues independently: a gradient tape may ask for several backward passes."""
        fork = copy.copy(self)
        fork._in_flight, fork._last = dict(self._in_flight), dict(self._last)
        fork._gradients = self._gradients.copy()
        fork._weight_gradients = list(self._weight_gradients)
        return fork

    def give_output_gradients(self, gradients: Iterable[list[tf.Tensor]], added: dict[int, tf.Tensor]) -> None:
        """Takes gradients from a loss outside the pipeline.

        Args:
            gradients: those of `outputs`: for each micro-batch a list of tensors, one per differentiable output.
            added: those of the sums in `added_losses`: dictionary from the index of a stage to a scalar.
        """
        last = len(self.stages) - 1
        self._added_gradients = added
        for m, parts in enumerate(gradients):
            positions = self._outputs[last, m].differentiable_positions
            self._gradients.add([(last, position) for position in positions], m, parts)

    @property
    def state(self) -> step_state.State:
        """The `step_state.State` that the forward actions run so far lead to."""
        return self._state.state

    def final_values(self) -> list[stage_layers.Variables]:
        """Returns, for each stage, its `Variables` after all forward actions, as tensors."""
        return self._state.final_values()

    def state_updates(self) -> list[tuple[keras.Variable, tf.Tensor]]:
        """Returns pairs (Keras variable, new value) of moving statistics and other state, after all forward actions."""
        return step_state.updates(self.stages, self.state)

    def _forward(self, stage: Stage, m: int) -> None:
        program = self._programs[stage.index]
        known = program.feed({
            'inputs': self._wiring.inputs(stage.index, lambda producer: self._outputs[producer, m]),
            'targets': self._share.targets[m] if self._is_last(stage) else (),
            'position': self._positions.of(m), 'factors': self._factors_of_added_losses(stage, m),
            **self._state.enter(stage)})
        flow = self._flows[stage.index] if self._flows else None
        done = self._in_turn(stage, program.forward, known, self._what_forward_keeps(stage, m), flow)
        results, self._in_flight[stage.index, m] = done.forward, done.known
        self._state.leave(stage, results['statistics'], results['assigned'])
        self._outputs[stage.index, m] = results['outputs']
        if results['metrics']:
            self._metrics.append(results['metrics'])
        if results['losses']:
            self._losses.setdefault(stage.index, []).append(results['losses'])

    def _backward(self, stage: Stage, m: int) -> None:
        program, flow = self._programs[stage.index], self._flows[stage.index]
        gradients = self._given_gradients(stage, m)
        is_split = self._schedule.is_split(self._action)
        known, backward = self._ready(stage, program, self._in_flight.pop((stage.index, m)), is_split)
        if self._by_layer:
            input_gradients = self._backward_by_segment(stage, program, known, gradients)
        elif is_split:
            done = self._in_turn(stage, program.backward_inputs, known, gradients, flow)
            input_gradients, self._in_flight[stage.index, m] = done.input_gradients, done.known
        else:
            before = self._sums_so_far(stage)
            done = self._in_turn(stage, backward, known, gradients, before, flow)
            input_gradients, self._weight_gradients[stage.index] = done.input_gradients, _with_rows(before, done.sums)
        sources = self._wiring.differentiable_sources[stage.index]
        self._gradients.add([sources[position] for position in flow.inputs], m, input_gradients)

    def _backward_by_segment(self, stage: Stage, program: stage_program.StageProgram, known: stage_program.Known,
                             gradients: list[tf.Tensor]) -> list[tf.Tensor]:
        """Builds the backward pass of one segment after the other; returns the gradients of the stage's inputs."""
        sums, added = self._sums_so_far(stage), gradients[len(gradients) - program.num_added_losses:]
        flow = self._flows[stage.index]
        for index in reversed(range(program.first_segment(flow), program.num_segments)):
            done = self._in_turn(stage, program.backward_segment, index, known, gradients, sums, flow)
            gradients, sums = done.input_gradients + added, _with_rows(sums, done.sums)
        self._weight_gradients[stage.index] = sums
        return done.input_gradients

    def _backward_weights(self, stage: Stage, m: int) -> None:
        known, flow = self._in_flight.pop((stage.index, m)), self._flows[stage.index]
        if flow.weights:
            before = self._sums_so_far(stage)
            done = self._in_turn(stage, self._programs[stage.index].backward_weights, known, before, flow)
            self._weight_gradients[stage.index] = _with_rows(before, done.sums)

    def _ready(self, stage: Stage, program: stage_program.StageProgram, known: stage_program.Known,
               is_split: bool) -> tuple[stage_program.Known, Callable[..., stage_program.ActionResult]]:
        """Recomputes, if that is a separate call; returns what is known then, and the backward function to use."""
        flow = self._flows[stage.index]
        is_one_call = stage.jit_compile and not self._by_layer and not is_split
        if is_one_call and not program.has_residuals(known, flow):
            return known, program.backward_from_inputs
        what = 'between' if self._by_layer else 'residuals'
        return self._in_turn(stage, program.recompute, known, what, flow).known, program.backward

    def _in_turn(self, stage: Stage, build: Callable[..., stage_program.ActionResult],
                 *arguments: Any) -> stage_program.ActionResult:
        """Builds a call after the previous one on the stage's device."""
        if self._work.observer:
            build = functools.partial(self._work.observer.around, self._share.replica, self._action, build)
        with tf.device(stage.device), tf.control_dependencies(self._last.get(stage.device, [])):
            done = build(*arguments)
        if done.operation is not None:
            self._last[stage.device] = [done.operation]
        return done

    def _given_gradients(self, stage: Stage, m: int) -> list[tf.Tensor]:
        program = self._programs[stage.index]
        if self._is_last(stage) and self._work.loss is not None:
            gradients = [self._scaled(tf.cast(self._one, program.trace.given_gradients[0].dtype))]
        else:
            gradients = self._take_gradients(stage.index, m)
        return gradients + ([self._added_gradient(stage)] if program.num_added_losses else [])

    def _factors_of_added_losses(self, stage: Stage, m: int) -> list[tf.Tensor]:
        """Weights a mean by the rows of its micro-batch, and a sum by all rows, by which the total is divided later.

        What is neither counts as a mean: `refuse_unproven_losses` was not called.
        """
        are_sums = self._wiring.added_sums[stage.index]
        if not are_sums:
            return []
        with tf.device(device_kinds.for_single_operations(stage.device)):
            factors, = self._programs[stage.index].trace.given_factors
            rows = tf.cast(self._positions.of(m)[3], factors.dtype)
            total_rows = tf.cast(self._total_rows, factors.dtype)
            return [tf.stack([total_rows if is_sum else rows for is_sum in are_sums])]

    def _added_gradient(self, stage: Stage) -> tf.Tensor:
        dtype = self._programs[stage.index].trace.given_gradients[-1].dtype
        given = self._added_gradients[stage.index] if self._work.loss is None else self._share_of_added_losses
        return tf.cast(given, dtype)

    @functools.cached_property
    def _one(self) -> tf.Tensor:
        """A 1 that is not a constant: for a constant TensorFlow would specialise backward functions per micro-batch."""
        with tf.device(device_kinds.for_single_operations(self.stages[-1].device)):
            return self._positions.zero + 1.0

    @functools.cached_property
    def _share_of_added_losses(self) -> tf.Tensor:
        """Factor of the gradients of added losses, because they too are divided by the total weight of the loss."""
        with tf.device(device_kinds.for_single_operations(self.stages[-1].device)):
            weight, rows = losses.in_one_precision([self._total_weight, self._total_rows])
            return self._scaled(weight / rows)

    @functools.cached_property
    def _total_weight(self) -> tf.Tensor:
        """The divisor of the mean loss of the mini-batch, computed before there are outputs."""
        last = self.stages[-1].device
        with tf.device(last):
            weights = [self._programs[-1].total_weight(targets, each._positions.of(m))
                       for each in self.siblings for m, targets in enumerate(each._share.targets)]
        with tf.device(device_kinds.for_single_operations(last)):
            return collectives.current().sum(last, tf.add_n(weights))

    @functools.cached_property
    def _total_rows(self) -> tf.Tensor:
        """The number of rows of all replicas, a float32 scalar."""
        last = self.stages[-1].device
        with tf.device(device_kinds.for_single_operations(last)):
            rows = tf.add_n([tf.cast(sum(each.rows), tf.float32) for each in self.siblings])
            return collectives.current().sum(last, rows)

    @functools.cached_property
    def scale_of_sum(self) -> tf.Tensor | None:
        """Factor of the gradients of the sum over the mini-batch, so that float16 has the same range as in Keras.

        Gradients of the sum are larger than those of the mean by the weight that the mean divides by. So the factor is
        the loss scale divided by that weight. If the weight depends on outputs, the number of rows is used instead.
        None: the loss is not scaled.
        """
        if self._work.loss_scale is None:
            return None
        try:
            weight = self._total_weight
        except losses.WeightUnknownError:
            weight = self._total_rows
        with tf.device(device_kinds.for_single_operations(self.stages[-1].device)):
            return tf.cast(self._work.loss_scale, weight.dtype) / tf.where(weight > 0.0, weight, 1.0)

    def _scaled(self, gradient: tf.Tensor) -> tf.Tensor:
        return gradient if self.scale_of_sum is None else gradient * tf.cast(self.scale_of_sum, gradient.dtype)

    def _take_gradients(self, producer: int, m: int) -> list[tf.Tensor]:
        return self._gradients.take(producer, m, self._outputs[producer, m], self.stages[max(producer, 0)].device)

    def _sums_so_far(self, stage: Stage) -> list:
        return self._weight_gradients[stage.index] or self._nothing_yet(stage)

    def _nothing_yet(self, stage: Stage) -> list:
        """Returns zeros that are not constants: TensorFlow would keep constants as a second copy of the weights."""
        program, positions = self._programs[stage.index], self._flows[stage.index].weights
        added_up = [position for position in positions if not program.keeps_rows(position)]
        with tf.device(stage.device):
            zeros = stage.zeros(self._positions.zero, [program.trace.weights[position] for position in added_up])
        found = dict(zip(added_up, zeros))
        return [found.get(position, ()) for position in positions]

    def _is_last(self, stage: Stage) -> bool:
        return stage is self.stages[-1]

    def _what_forward_keeps(self, stage: Stage, m: int) -> str:
        is_kept = schedules.Action(schedules.BACKWARD, stage.index, m) in self._kept
        if self._work.recompute == 'selective' and self._flows and self._flows[stage.index]:
            self._programs[stage.index].select(self._flows[stage.index], stage.selection)
            return 'residuals' if is_kept and not self._has_too_many_residuals(stage) else 'selected'
        if not is_kept:
            return 'nothing'
        if self._by_layer:
            return 'between'
        return 'nothing' if self._work.recompute == 'stage' and self._has_too_many_residuals(stage) else 'residuals'

    def _has_too_many_residuals(self, stage: Stage) -> bool:
        program, flow = self._programs[stage.index], self._flows[stage.index]
        return stage.jit_compile and program.num_backward_arguments(flow) > stage_program.MOST_TPU_PARAMETERS


def _with_rows(before: list, after: list) -> list:
    """Returns the sums after a backward action; rows are appended to those of earlier actions."""
    return [(*old, new) if isinstance(new, micro_batches.Rows) else new for old, new in zip(before, after)]
