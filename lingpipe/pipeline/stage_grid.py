"""The stages of all replicas, and the execution of a mini-batch on these stages."""

import copy
import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import keras
import tensorflow as tf

from lingpipe import hyperparams, schedules
from lingpipe.devices import collectives, device_kinds, variable_placement
from lingpipe.layers import batch_normalization
from lingpipe.pipeline import executor, gradient_flow, step_state, validation
from lingpipe.stages import micro_batches, random_seeds, stage_layers
from lingpipe.stages.stage import Stage


class MiniBatch:
    """A mini-batch on all replicas, with an `Execution` for the share of each replica.

    ::

        mini-batch ─┬─ micro-batches 0, 1 ─> replica 0:  stage 0 ─> stage 1 ─> loss ─┐
                    └─ micro-batches 2, 3 ─> replica 1:  stage 0 ─> stage 1 ─> loss ─┴─> sums over replicas

    R replicas with M micro-batches each compute the same as one pipeline with R·M micro-batches. Each weight is stored
    on one of the devices of its stage. Only this device updates the weight (arXiv 2004.13336, section 3).
    """

    def __init__(self, executions: list[executor.Execution], gradient_sum: str,
                 loss_scale: tf.Tensor | None, group: collectives.Group) -> None:
        self._executions, self._gradient_sum, self.group = executions, gradient_sum, group
        self._last_device = executions[0].stages[-1].device
        self.loss_factors = gradient_flow.LossFactors(
            executions[0].programs[-1], self._last_device, [each.share for each in executions], loss_scale, group)
        for execution in executions:
            execution.loss_factors = self.loss_factors

    def run(self, kinds: Sequence[str] = executor.ALL_KINDS) -> None:
        """Build all actions of the given kinds."""
        if schedules.BACKWARD in kinds and len(self.row_counts) > 1:
            self._refuse_python_gradients()
        for execution in self._executions:
            execution.run(kinds)

    def _refuse_python_gradients(self) -> None:
        first = self._executions[0]
        for index, (program, needed) in enumerate(zip(first.programs, first.needed)):
            if needed and program.differentiates_python:
                raise ValueError(
                    f'A layer or loss of partition {index} calls tf.py_function, of which TensorFlow can '
                    f'differentiate only one call at a time, but there are {len(self.row_counts)} micro-batches. '
                    'Set num_micro_batches and num_replicas to 1; or write operations of TensorFlow, or '
                    'tf.numpy_function inside tf.custom_gradient.')

    @property
    def row_counts(self) -> micro_batches.RowCounts:
        """The number of rows of each micro-batch."""
        return [count for execution in self._executions for count in execution.share.row_counts]

    def join_outputs(self) -> Any:
        """Return the outputs as a nest of tensors `[batch, ...]`, on the last stage's device."""
        with tf.device(device_kinds.for_single_operations(self._last_device)):
            outputs = [nest for execution in self._executions for nest in execution.outputs]
            return micro_batches.join(outputs, self.row_counts)

    def take_sums(self) -> micro_batches.Sums:
        """Build and return the `Sums` of all actions and replicas. Call this once."""
        parts = [execution.take_sums() for execution in self._executions]
        if len(parts) == 1:
            return parts[0]
        weights, of_stages = parts[0].weights, zip(*[part.weight_gradients for part in parts])
        weight_gradients = [self._sum_weight_gradients(index, variables, list(of_replicas))
                            for index, (variables, of_replicas) in enumerate(zip(weights, of_stages))]
        return micro_batches.Sums(
            self._add_up([part.metrics for part in parts]),
            [self._add_up(of_replicas) for of_replicas in zip(*[part.losses for part in parts])], weights,
            weight_gradients, [nest for part in parts for nest in part.input_gradients])

    def take_sums_of_group(self) -> micro_batches.Sums:
        """Call `take_sums`, and sum metrics and added losses over all worker processes or TPU replicas."""
        sums = self.take_sums()
        metrics, added = self.group.sum(self._last_device, (sums.metrics, sums.losses))
        return sums._replace(metrics=metrics, losses=added)

    @property
    def added_losses(self) -> dict[int, Any]:
        """Losses that layers add, as `{stage index: (sum, num_rows)}`."""
        parts = [execution.added_losses for execution in self._executions]
        return {index: self._add_up([part[index] for part in parts]) for index in parts[0]}

    def _add_up(self, parts: Sequence[Any]) -> Any:
        """Add up results of all replicas on the device of the last stage."""
        return parts[0] if len(parts) == 1 else device_kinds.call(self._last_device, micro_batches.add_up, list(parts))

    @property
    def state(self) -> step_state.StepState:
        """The `StepState` of the first replica."""
        return self._executions[0].state  # others differ only in statistics and assigned values

    def fork(self) -> 'MiniBatch':
        """Return a copy for another backward pass; see `executor.Execution.fork`."""
        fork = copy.copy(self)
        fork._executions = [execution.fork() for execution in self._executions]
        return fork

    def give_output_gradients(self, gradients: Iterable[list[tf.Tensor]], added: dict[int, tf.Tensor]) -> None:
        """Provide gradients of a loss outside the pipeline; see `executor.Execution.give_output_gradients`."""
        remaining = iter(gradients)
        for execution in self._executions:
            execution.give_output_gradients(itertools.islice(remaining, len(execution.share.parts)), added)

    def state_updates(self) -> list[tuple[keras.Variable, tf.Tensor]]:
        """Return pairs (state variable, new value) for changed variables. Call this after all forward actions."""
        return self.state.updates([execution.state for execution in self._executions], self.group)

    def _sum_weight_gradients(self, index: int, variables: list[keras.Variable], parts: list) -> list:
        if not variables:
            return []
        devices = [execution.stages[index].device for execution in self._executions]
        owners = [variable_placement.owner(variable, devices) for variable in variables]
        looked_up = {index for index, each in enumerate(parts[0]) if isinstance(each, micro_batches.Rows)}
        added_up = [index for index in range(len(variables)) if index not in looked_up]
        sums = collectives.gradient_sums(
            self._gradient_sum, [[part[index] for index in added_up] for part in parts], devices,
            [owners[index] for index in added_up])
        found = dict(zip(added_up, sums)) | {
            index: device_kinds.call(owners[index], micro_batches.join_rows, [part[index] for part in parts])
            for index in looked_up}
        return [found[index] for index in range(len(variables))]


class StageGrid:
    """The stages of all replicas.

    ::

                     stage 0   stage 1   stage 2
        replica 0     GPU:0     GPU:1     GPU:2      replicas share layers, variables and programs
        replica 1     GPU:3     GPU:4     GPU:5
    """

    observer: Any = None  # builds the actions of training steps; see `executor.PassOptions`

    def __init__(self, replicas: list[list[Stage]], schedule: schedules.Schedule, seeds: random_seeds.StepSeeds,
                 params: hyperparams.Params) -> None:
        self.replicas, self.schedule = replicas, schedule
        self._seeds, self._params = seeds, params

    @property
    def stages(self) -> list[Stage]:
        """List of the `Stage`s of the first replica."""
        return self.replicas[0]

    @property
    def trainable_variables(self) -> list[keras.Variable]:
        """List of the distinct trainable Keras variables, in the order of the stages."""
        variables = (variable for stage in self.stages for variable in stage.trainable_variables)
        return list({id(variable): variable for variable in variables}.values())

    def seed_and_step(self, step: Any, training: bool | None) -> tf.Tensor:
        """Return the int64 tensor `[2]` on which random numbers depend; see `random_seeds.StepSeeds`."""
        return self._seeds.of(step, training, self.stages[0].device)

    def mini_batch(self, options: executor.PassOptions, values: list[stage_layers.Variables], inputs: Any,
                   targets: Any = None) -> MiniBatch:
        """Cut tensors `[batch, ...]` into the shares of all replicas. Without a loss, `targets` is None."""
        p, batch, group = self._params, inputs if targets is None else (inputs, targets), collectives.current()
        count = micro_batches.count(batch, p.num_replicas * p.num_micro_batches)
        if options.training:
            validation.refuse_overwritten(self.trainable_variables)
        validation.validate_batch(batch, count, p, [stage.device for stages in self.replicas for stage in stages])
        first, last = self._device_to_split_on(0), self._device_to_split_on(-1)
        with tf.device(device_kinds.for_single_operations(first)):
            row_counts, checks = micro_batches.numbers_of_rows(inputs, count), micro_batches.row_checks(batch)
        with tf.control_dependencies(checks):
            parts = micro_batches.split_on(first, inputs, count)
            targets = [()] * count if targets is None else micro_batches.split_on(last, targets, count)
        shares = self._shares(options, group, parts, targets, row_counts)
        executions = [executor.Execution(stages, options, p.recompute, share, variable_placement.bring(stages, values))
                      for stages, share in zip(self.replicas, shares) if share.parts]
        if p.added_losses == 'exact':
            executions[0].refuse_unproven_losses()
        return MiniBatch(executions, p.gradient_sum, options.loss_scale, group)

    def _device_to_split_on(self, index: int) -> str:
        """Return the device that cuts batches for stage `index`."""
        device = self.stages[index].device
        return device if len(self.replicas) == 1 else device_kinds.host_of(device)

    def _shares(self, options: executor.PassOptions, group: collectives.Group, parts: list, targets: list,
                row_counts: micro_batches.RowCounts) -> list[executor.ReplicaShare]:
        num_replicas = len(self.replicas)
        ends = [len(parts) * replica // num_replicas for replica in range(num_replicas + 1)]
        if options.training:
            self._check_sizes([stop - start for start, stop in itertools.pairwise(ends)])
        equal, is_whole_batch = micro_batches.are_equal(row_counts), len(parts) * group.count == 1

        def share(index: int, start: int, stop: int) -> executor.ReplicaShare:
            replica = group.index * num_replicas + index
            ids = micro_batches.MicroBatchIds(options.seed_and_step, row_counts[start:stop],
                                              self.replicas[index][0].device, group.index * len(parts) + start, replica)
            return executor.ReplicaShare(
                parts[start:stop], targets[start:stop], row_counts[start:stop], ids, replica, equal, is_whole_batch)

        return [share(index, *pair) for index, pair in enumerate(itertools.pairwise(ends))]

    def _check_sizes(self, counts: list[int]) -> None:
        waiting = batch_normalization.group_sizes([layer for each in self.stages for layer in each.layers])
        if waiting and max(counts) > collectives.MOST_MICRO_BATCHES:
            raise ValueError(f'num_micro_batches={max(counts)} is too many where layers share statistics between '
                             f'replicas. Set it to at most {collectives.MOST_MICRO_BATCHES}.')
        if waiting and min(counts) != max(counts):
            raise ValueError(
                f'A batch gives some replicas {min(counts)} and others {max(counts)} micro-batches, but layers such as '
                f'{next(iter(waiting.values()))!r} share statistics between replicas and would wait for ever. Make the '
                'batch at least num_replicas * num_micro_batches large.')
