"""The stages of a pipeline in all of its replicas, and what starts a mini-batch on its way through them."""

import itertools

import tensorflow as tf

from lingpipe.devices import collectives, device_kinds, variable_values
from lingpipe.pipeline import executor, replicas, validation
from lingpipe.stages import boundary, micro_batches


class StageGrid:
    """Stages by devices: a row for each replica, a column for each stage.

    ::

                     stage 0   stage 1   stage 2
        replica 0     GPU:0     GPU:1     GPU:2      rows share layers, variables and programs
        replica 1     GPU:3     GPU:4     GPU:5

    Args:
        rows: for each replica, the list of its `Stage`s.
        schedule: the `Schedule` of a full training batch of a replica.
        seeds: `random_seeds.StepSeeds`.
        params: `GPipeLayer.Params()`.

    Attributes:
        rows: as given.
        schedule: as given.
        observer: what is told of the actions of training steps; see `executor.Work`.
    """

    observer = None

    def __init__(self, rows, schedule, seeds, params):
        self.rows, self.schedule = rows, schedule
        self._seeds, self._params = seeds, params
        self.rows_check = micro_batches.RowsCheck(params.num_micro_batches, params.num_replicas)

    @property
    def stages(self):
        """List of the `Stage`s of the first replica, on whose devices the variables live."""
        return self.rows[0]

    @property
    def trainable_variables(self):
        """List of the trainable Keras variables in the order of the stages, each once."""
        return list({id(variable): variable for stage in self.stages for variable in stage.trainable_variables}.values())

    @property
    def recompute(self):
        """What the backward actions compute anew: 'none', 'stage' or 'layer'."""
        return self._params.recompute

    def seed_and_step(self, step, training):
        """Returns the int64 tensor `[2]` that random numbers depend on; see `random_seeds.StepSeeds`."""
        return self._seeds.of(step, training, self.stages[0].device)

    def execution(self, work, values, inputs, targets=None):
        """Prepares one mini-batch for its way through the stages.

        Args:
            work: `executor.Work`.
            values: list of `Variables` of tensors, one a stage.
            inputs: nest of tensors `[batch, ...]`.
            targets: nest of tensors `[batch, ...]` that the loss compares outputs with, or None.

        Returns:
            `executor.Execution`, or `replicas.Replicas`.
        """
        p, batch = self._params, inputs if targets is None else (inputs, targets)
        count = micro_batches.count(batch, p.num_replicas * p.num_micro_batches)
        if work.training:
            self.rows_check.check(batch)
            validation.refuse_overwritten(self.trainable_variables)
        validation.validate_batch(batch, count, p, [stage.device for row in self.rows for stage in row])
        parts = micro_batches.split_on(self._place_of(0), inputs, count)
        targets = [()] * count if targets is None else micro_batches.split_on(self._place_of(-1), targets, count)
        executions = [
            executor.Execution(stages, work, share, variable_values.bring(stages, values))
            for stages, share in zip(self.rows, self._shares(parts, targets, work.training)) if share.parts]
        return executions[0] if len(executions) == 1 else replicas.Replicas(executions, collectives.GradientSum(p.gradient_sum))

    def _place_of(self, index):
        """Returns where batches are cut for a stage: on its device, or on the host where several devices have the stage."""
        device = self.stages[index].device
        return device if len(self.rows) == 1 else device_kinds.host_of(device)

    def _shares(self, parts, targets, training):
        """Returns the `executor.Share` of each replica; micro-batches keep the numbers that they would have in one pipeline."""
        group, num_rows = collectives.current(), len(self.rows)
        ends = [len(parts) * row // num_rows for row in range(num_rows + 1)]
        if training:
            self._check_sizes([stop - start for start, stop in itertools.pairwise(ends)])
        equal = micro_batches.are_equal([micro_batches.num_rows(boundary.unpack(nest).values) for nest in parts])
        return [executor.Share(parts[start:stop], targets[start:stop], group.index * len(parts) + start,
                               group.index * num_rows + row, equal, is_whole_batch=len(parts) * group.count == 1)
                for row, (start, stop) in enumerate(itertools.pairwise(ends))]

    def _check_sizes(self, counts):
        waiting = [layer.name for stage in self.stages for layer in stage.layers for sublayer in layer._flatten_layers()
                   if getattr(sublayer, 'group_size', 1) > 1]
        if not waiting:
            return
        if min(counts) != max(counts):
            raise ValueError(
                f'A batch gives some replicas {min(counts)} and others {max(counts)} micro-batches, but layers such as {waiting[0]!r} '
                'share statistics between replicas and would wait for ever. Make the batch at least num_replicas * num_micro_batches '
                'large.')
        if max(counts) > collectives.MOST_MICRO_BATCHES:
            raise ValueError(
                f'num_micro_batches={max(counts)} is too many where layers such as {waiting[0]!r} share statistics between replicas: '
                f'{collectives.MOST_MICRO_BATCHES} are the most whose sums can be told apart. Set it to that or less.')


def join_outputs(execution, stages):
    """Returns the outputs of all micro-batches as one nest of tensors `[batch, ...]`, on the device of the last stage."""
    with tf.device(device_kinds.for_single_operations(stages[-1].device)):
        return micro_batches.join(execution.outputs)
