"""The actions of a schedule, as operations on the devices of one replica.

Building an action adds operations to the current graph. The operations run when the graph runs.
"""

import copy
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Self

import tensorflow as tf

from lingpipe import schedules
from lingpipe.devices import device_kinds
from lingpipe.pipeline import gradient_flow, step_state
from lingpipe.stages import boundary, micro_batches, stage_layers, stage_program
from lingpipe.stages.stage import Stage
from lingpipe.stages.stage_program import ActionResult

ALL_KINDS = (schedules.FORWARD, schedules.BACKWARD, schedules.WEIGHT)
_PIPELINE_INPUT = -1  # the producer of what the first stage reads


class PassOptions(NamedTuple):
    """Options for running a batch through the stages of all replicas."""

    schedule: schedules.Schedule  # of a full batch of one replica
    seed_and_step: tf.Tensor  # int64 `[2]`, on which all random numbers depend
    training: bool | None  # None: the default of each layer
    loss: Callable | None = None  # function `(targets, outputs) -> {name: (sum, weight)}` that runs on the last stage
    input_gradients_needed: bool = False  # whether gradients of the pipeline's inputs are needed
    # an object with a method `around(replica, action, build, *arguments)`, which returns the `ActionResult` of
    # `build(*arguments)`, such as `action_times.ActionTimes`
    observer: Any = None
    loss_scale: tf.Tensor | None = None  # scalar by which all gradients of the mean loss are multiplied


class ReplicaShare(NamedTuple):
    """One replica's share of a batch, cut into micro-batches."""

    parts: list  # nests of tensors `[micro_batch, ...]`, the inputs of the pipeline
    targets: list  # for each part, the nest of tensors that the loss compares with; () if there is no loss
    row_counts: micro_batches.RowCounts  # for each part; 0 for an empty part, which has one dummy row
    ids: micro_batches.MicroBatchIds
    replica: int
    equal_rows: bool  # whether the micro-batches of all replicas are known to have the same number of rows
    is_whole_batch: bool  # whether there is one micro-batch, and no other replica has a part of the batch


class Execution:
    """The actions of one replica's share of a batch.

    Every device runs its actions in schedule order. Only boundary tensors and their gradients cross between devices.
    Comments below use the numbers of this diagram::

        device 0   F0 ──> F1 ──> F2 ......... B2 ──> B1 ──> B0          ──>  1: order on a device (control edge)
                    └3┐    └3┐    └3┐       ┌6┘    ┌6┘    ┌6┘            │   3: output, read as an input (2)
                     2v     2v     2v       │      │      │              ^   6: gradient of an input
        device 1      F0 ──> F1 ──> F2 ──> B2 ──> B1 ──> B0
                       └───────────── 4 ───────────────── 5                  4: in flight, from F until B (5)
    """

    loss_factors: gradient_flow.LossFactors  # given after all replicas have executions

    def __init__(self, stages: list[Stage], options: PassOptions, recompute: str, share: ReplicaShare,
                 values: list[stage_layers.Variables]) -> None:
        self.stages, self._options, self._recompute, self.share = stages, options, recompute, share
        self._schedule = schedule = options.schedule.for_num_micro_batches(len(share.parts))
        self._by_layer = recompute == 'layer' and bool(schedule.backwards())
        # The B actions without recomputation. A B that directly follows its own F needs none.
        is_all = recompute == 'none'
        self._without_recompute = schedule.backwards() if is_all else schedule.backwards_after_own_forward()
        inputs = [boundary.unpack(nest) for nest in share.parts]
        self._wiring = self._trace(inputs[0])
        self.programs = self._wiring.programs
        self.state = step_state.StepState(stages, self.programs, values)  # which the forward actions change
        self.needed = self._needed_gradients()
        self._previous: dict[str, list[tf.Operation]] = {}  # of each device
        # These dictionaries do not keep tensors in memory: TensorFlow frees a tensor after its last reader.
        self._outputs = {(_PIPELINE_INPUT, m): each for m, each in enumerate(inputs)}
        self._in_flight: dict[tuple[int, int], stage_program.Values] = {}  # of (stage, micro-batch)
        self._metrics: list[dict] = []
        self._added_losses: dict[int, list] = {}
        self._gradients = gradient_flow.BoundaryGradients()
        self._weight_gradients: list[Any] = [None] * len(stages)
        self._added_gradients: dict[int, tf.Tensor] = {}  # of a loss outside the pipeline

    def _trace(self, inputs: boundary.Boundary) -> step_state.Wiring:
        """Trace the stages for the shapes of the first micro-batch."""
        share, options = self.share, self._options
        specs = micro_batches.specs_of_tensors((inputs, share.targets[0]))
        if not share.equal_rows:
            specs = micro_batches.specs_of(specs, None)  # so that one trace fits all
        return step_state.trace(
            self.stages, specs, boundary.structure_of(share.parts[0]), options.loss, options.training, self._by_layer,
            share.is_whole_batch)

    def _needed_gradients(self) -> list[stage_program.NeededGradients]:
        if not self._schedule.backwards():
            return [stage_program.NOTHING_NEEDED] * len(self.stages)
        found = gradient_flow.needed_gradients(
            self.programs, self._wiring.differentiable_sources, self._options.input_gradients_needed)
        if self._recompute == 'selective':
            for stage, program, needed in zip(self.stages, self.programs, found):
                if needed:
                    program.select(needed, stage.selection)
        return found

    def refuse_unproven_losses(self) -> None:
        """Raise ValueError if an added loss is not provably a mean or a sum over examples."""
        for stage, are_sums in zip(self.stages, self._wiring.are_sums):
            if None in are_sums:
                names = [layer.name for layer in stage.layers]
                raise ValueError(
                    f'A layer of partition {stage.index} ({", ".join(names[:5])}) adds a loss (add_loss or an activity '
                    'regularizer), and its graph does not show that the loss of a batch is the mean or the sum of the '
                    'losses of its examples, so it cannot be computed exactly over micro-batches. Set '
                    "num_micro_batches=1; or added_losses='averaged' to take the mean over the micro-batches, as is "
                    'usual for the balance of experts.')

    def run(self, kinds: Sequence[str] = ALL_KINDS) -> None:
        """Build all actions of the given kinds."""
        build = {schedules.FORWARD: self._forward, schedules.BACKWARD: self._backward,
                 schedules.WEIGHT: self._backward_weights}
        self.state.refuse_other_orders(self._schedule)
        for action in self._schedule.execution_order():
            if action.kind in kinds and (action.kind == schedules.FORWARD or self.needed[action.stage]):
                build[action.kind](action)

    @property
    def outputs(self) -> list:
        """The outputs of the last stage, as a list with a nest for each micro-batch."""
        last = len(self.stages) - 1
        structure = self.programs[last].trace.output_structure
        return [boundary.pack(self._outputs[last, m], structure) for m in range(len(self.share.parts))]

    def take_sums(self) -> micro_batches.Sums:
        """Build and return the sums of metrics, losses and gradients. Call this once."""
        metrics = device_kinds.call(self.stages[-1].device, micro_batches.add_up, self._metrics)
        inputs = [self._take_gradients(_PIPELINE_INPUT, m) if self._options.input_gradients_needed else []
                  for m in range(len(self.share.parts))]
        weights = [[program.trace.weights[position] for position in needed.weights]
                   for program, needed in zip(self.programs, self.needed)]
        gradients = [[device_kinds.call(stage.device, micro_batches.join_rows, each) if isinstance(each, tuple)
                      else each for each in sums or []] for stage, sums in zip(self.stages, self._weight_gradients)]
        return micro_batches.Sums(metrics, list(self.added_losses.values()), weights, gradients, inputs)

    @property
    def added_losses(self) -> dict[int, Any]:
        """Losses that layers add, as `{stage index: (sum, num_rows)}` on the last stage's device."""
        return {index: device_kinds.call(self.stages[-1].device, micro_batches.add_up, parts)
                for index, parts in self._added_losses.items()}

    def fork(self) -> Self:
        """Return a copy for another backward pass."""
        fork = copy.copy(self)  # a gradient tape may ask for several backward passes
        fork._in_flight, fork._previous = dict(self._in_flight), dict(self._previous)
        fork._gradients, fork._weight_gradients = gradient_flow.BoundaryGradients(), [None] * len(self.stages)
        return fork

    def give_output_gradients(self, gradients: Iterable[list[tf.Tensor]], added: dict[int, tf.Tensor]) -> None:
        """Provide the gradients of a loss that is computed outside the pipeline.

        Args:
            gradients: for each micro-batch, the list of gradients with respect to its differentiable `outputs`.
            added: {stage index: scalar gradient with respect to the stage's sum in `added_losses`}.
        """
        last = len(self.stages) - 1
        self._added_gradients = added
        for m, parts in enumerate(gradients):
            positions = self._outputs[last, m].differentiable_positions
            self._gradients.add([(last, position) for position in positions], m, parts)

    def _in_turn(self, action: schedules.Action, build: Callable[..., ActionResult], *arguments: Any) -> ActionResult:
        """Build operations that wait for the previous operations on the action's device."""
        if self._options.observer:
            build = functools.partial(self._options.observer.around, self.share.replica, action, build)
        device = self.stages[action.stage].device
        # 1. The control edge to the previous action on the device limits memory.
        with tf.device(device), tf.control_dependencies(self._previous.get(device, [])):
            done = build(*arguments)
        if done.operation is not None:
            self._previous[device] = [done.operation]
        return done

    def _forward(self, action: schedules.Action) -> None:
        stage, m = self.stages[action.stage], action.micro_batch
        # 2. Inputs come from the stages that made them; variables have the values that earlier micro-batches left.
        inputs = self._wiring.inputs(stage.index, lambda producer: self._outputs[producer, m])
        targets = self.share.targets[m] if stage is self.stages[-1] else ()
        values, borrowed, statistics = self.state.before(stage)
        arguments = stage_program.Arguments(inputs, targets, values, self.share.ids.of(m), borrowed,
                                            self._factors_of_added_losses(stage, m), statistics)
        done = self._in_turn(action, self.programs[stage.index].forward, arguments,
                             self._what_forward_retains(stage, m), self.needed[stage.index])
        # 3. The outputs wait for the stages that read them.
        self._outputs[stage.index, m] = done.results.outputs
        # 4. From here to its last backward action the micro-batch is in flight on this stage.
        self._in_flight[stage.index, m] = done.in_flight
        self.state.record(stage, done.results)
        if done.results.metrics:
            self._metrics.append(done.results.metrics)
        if done.results.added:
            self._added_losses.setdefault(stage.index, []).append(done.results.added)

    def _backward(self, action: schedules.Action) -> None:
        stage, m = self.stages[action.stage], action.micro_batch
        program, needed = self.programs[stage.index], self.needed[stage.index]
        gradients = self._given_gradients(stage, m)
        # 5. What is in flight is taken out, and completed by recomputation.
        in_flight = self._in_flight.pop((stage.index, m))
        is_split = self._schedule.is_split(action)
        # Recomputation does not wait for gradients. It fills the time until these arrive.
        if self._by_layer:
            in_flight = self._in_turn(action, program.recompute, in_flight, 'between', needed).in_flight
        elif not program.has_residuals(in_flight, needed) and (is_split or not stage.jit_compile):
            # If XLA compiles the stage, the backward program recomputes residuals itself, so that XLA frees them.
            in_flight = self._in_turn(action, program.recompute, in_flight, 'residuals', needed).in_flight
        if self._by_layer:  # never split: refused by `validation`
            input_gradients = self._backward_by_segment(action, program, in_flight, gradients)
        elif is_split:
            first = self._in_turn(action, program.backward_inputs, in_flight, gradients, needed)
            input_gradients, self._in_flight[stage.index, m] = first.input_gradients, first.in_flight
        else:
            before = self._sums_so_far(stage)
            done = self._in_turn(action, program.backward, in_flight, gradients, before, needed)
            input_gradients, self._weight_gradients[stage.index] = done.input_gradients, _with_rows(before, done.sums)
        # 6. Gradients of inputs go back to the stages that made these.
        sources = self._wiring.differentiable_sources[stage.index]
        self._gradients.add([sources[position] for position in needed.inputs], m, input_gradients)

    def _backward_by_segment(self, action: schedules.Action, program: stage_program.StageProgram,
                             in_flight: stage_program.Values, gradients: list[tf.Tensor]) -> list[tf.Tensor]:
        """Build the backward pass of a stage layer by layer."""
        stage, needed = self.stages[action.stage], self.needed[action.stage]
        sums, added = self._sums_so_far(stage), program.of_added_losses(gradients)
        for index in reversed(range(program.first_segment(needed), len(program.trace.between) + 1)):
            done = self._in_turn(action, program.backward_segment, index, in_flight, gradients, sums, needed)
            gradients, sums = done.input_gradients + added, _with_rows(sums, done.sums)
        self._weight_gradients[stage.index] = sums
        return done.input_gradients  # of the inputs of the stage

    def _backward_weights(self, action: schedules.Action) -> None:
        stage, needed = self.stages[action.stage], self.needed[action.stage]
        in_flight = self._in_flight.pop((stage.index, action.micro_batch))
        if needed.weights:
            before = self._sums_so_far(stage)
            done = self._in_turn(action, self.programs[stage.index].backward_weights, in_flight, before, needed)
            self._weight_gradients[stage.index] = _with_rows(before, done.sums)

    def _what_forward_retains(self, stage: Stage, m: int) -> stage_program.Retained:
        """Return which tensors a stage retains after its forward pass of micro-batch `m`."""
        recompute = self._recompute
        least: stage_program.Retained = 'selected' if recompute == 'selective' else 'unrepeatable'
        if schedules.Action(schedules.BACKWARD, stage.index, m) not in self._without_recompute:
            return least
        if self._by_layer:
            return 'between'
        return least if recompute != 'none' and self._has_too_many_residuals(stage) else 'residuals'

    def _has_too_many_residuals(self, stage: Stage) -> bool:
        """Return whether XLA's backward function has more arguments than TPUs allow."""
        program, needed = self.programs[stage.index], self.needed[stage.index]
        # The limit is applied on all devices, not only on TPUs.
        return stage.jit_compile and program.num_backward_arguments(needed) > stage_program.MOST_TPU_PARAMETERS

    def _given_gradients(self, stage: Stage, m: int) -> list[tf.Tensor]:
        """Return the gradients that a backward action starts from."""
        program = self.programs[stage.index]
        if stage is self.stages[-1] and self._options.loss is not None:
            one = tf.cast(self._one, program.trace.given_gradients[0].dtype)
            gradients = [self.loss_factors.scaled(one)]
        else:
            gradients = self._take_gradients(stage.index, m)
        if program.adds_losses:
            is_inside = self._options.loss is not None
            added = self.loss_factors.factor_of_added_losses if is_inside else self._added_gradients[stage.index]
            gradients.append(tf.cast(added, program.trace.given_gradients[-1].dtype))
        return gradients

    @functools.cached_property
    def _one(self) -> tf.Tensor:
        """The scalar 1.0, as a tensor that is not a constant."""
        with tf.device(device_kinds.for_single_operations(self.stages[-1].device)):
            return self.share.ids.zero + 1.0  # for a constant, each micro-batch would get a new backward function

    def _take_gradients(self, producer: int, m: int) -> list[tf.Tensor]:
        return self._gradients.take(producer, m, self._outputs[producer, m], self.stages[max(producer, 0)].device)

    def _factors_of_added_losses(self, stage: Stage, m: int) -> list[tf.Tensor]:
        """Return the factors by which the stage multiplies the losses that its layers add."""
        are_sums = self._wiring.are_sums[stage.index]
        if not are_sums:
            return []
        with tf.device(device_kinds.for_single_operations(stage.device)):
            factors, = self.programs[stage.index].trace.given_factors
            num_rows = tf.cast(micro_batches.MicroBatchId.of(self.share.ids.of(m)).num_rows, factors.dtype)
            # A sum is later divided by `total_rows`. An empty micro-batch computes one row, whose factor is 0.
            total_rows = tf.where(num_rows > 0, tf.cast(self.loss_factors.total_rows, factors.dtype), 0)
            return [tf.stack([total_rows if is_sum else num_rows for is_sum in are_sums])]  # None counts as a mean

    def _sums_so_far(self, stage: Stage) -> list:
        return self._weight_gradients[stage.index] or self._zeros(stage)

    def _zeros(self, stage: Stage) -> list:
        """Return zeros, to which the stage's first weight gradients are added."""
        program, positions = self.programs[stage.index], self.needed[stage.index].weights
        added_up = [position for position in positions if not program.keeps_rows(position)]
        # TensorFlow would keep constants in memory. Computed after the previous action, zeros take none until needed.
        with tf.device(stage.device), tf.control_dependencies(self._previous.get(stage.device, [])):
            zeros = stage.zeros(self.share.ids.zero, [program.trace.weights[position] for position in added_up])
        found = dict(zip(added_up, zeros))
        return [found.get(position, ()) for position in positions]


def _with_rows(before: list, after: list) -> list:
    """Return each weight's new gradient sum, or a tuple of all its `Rows`."""
    # `Rows` are not summed: a tuple collects them.
    return [(*old, new) if isinstance(new, micro_batches.Rows) else new for old, new in zip(before, after)]
