"""Pipelines side by side, each with a share of the mini-batch, that answer as one."""

from lingpipe.devices import device_kinds, variable_placement
from lingpipe.pipeline import executor, step_state
from lingpipe.stages import step_sums


class Replicas:
    """The executions of one mini-batch on the rows of a device grid, with the face of a single `executor.Execution`.

    ::

        mini-batch ─┬─ micro-batches 0, 1 ─> replica 0:  stage 0 ─> stage 1 ─> loss ─┐
                    └─ micro-batches 2, 3 ─> replica 1:  stage 0 ─> stage 1 ─> loss ─┴─> sums over replicas

    Micro-batches keep the numbers that they would have in one pipeline, so that R replicas of M micro-batches compute what one
    pipeline of R M micro-batches does, random numbers included. Each weight lives on one of the devices that have its stage:
    it is sent to the others at the begin of a step, and the gradients come back to it. The weights of all replicas are
    therefore equal, and each device updates its share of them (arXiv 2004.13336, section 3).

    Args:
        executions: list of `executor.Execution`s, one a replica that takes part.
        gradient_sum: `collectives.GradientSum`.
    """

    def __init__(self, executions, gradient_sum):
        self._executions, self._gradient_sum = executions, gradient_sum
        for execution in executions:
            execution.siblings = executions

    def run(self, kinds=executor.ALL_KINDS):
        """Lays out all actions of the given kinds."""
        for execution in self._executions:
            execution.run(kinds)

    @property
    def num_micro_batches(self):
        """Number of micro-batches of this mini-batch, in all replicas."""
        return sum(self._counts)

    @property
    def outputs(self):
        """For each micro-batch, the nest of outputs of the last stage."""
        return [nest for execution in self._executions for nest in execution.outputs]

    @property
    def sums(self):
        """The `step_sums.Sums` of all actions run so far, over all replicas."""
        parts = [execution.sums for execution in self._executions]
        last = self._executions[0].stages[-1].device
        metrics = device_kinds.call(last, step_sums.add_up, [part.metrics for part in parts])
        losses = list(self.added_losses.values())
        weights = parts[0].weights
        weight_gradients = [self._sum_weight_gradients(index, variables, [part.weight_gradients[index] for part in parts])
                            for index, variables in enumerate(weights)]
        return step_sums.Sums(
            metrics, losses, weights, weight_gradients, [nest for part in parts for nest in part.input_gradients])

    @property
    def scale_of_sum(self):
        """What gradients of the sum over the mini-batch are multiplied by, or None."""
        return self._executions[0].scale_of_sum

    @property
    def added_losses(self):
        """Dictionary from the index of a stage whose layers add losses to their pair (sum, rows)."""
        parts, last = [execution.added_losses for execution in self._executions], self._executions[0].stages[-1].device
        return {index: device_kinds.call(last, step_sums.add_up, [part[index] for part in parts]) for index in parts[0]}

    @property
    def borrowed(self):
        """List of the Keras variables that some stage reads and none has."""
        return self._executions[0].borrowed

    @property
    def state(self):
        """The `step_state.State` that the forward actions run so far lead to, over all replicas."""
        return step_state.merge_updates(self._executions[0].stages, [execution.state for execution in self._executions])

    def final_values(self):
        """Returns, for each stage, its `Variables` after all forward actions, as tensors."""
        return self._executions[0].final_values()

    def fork(self):
        """Returns a copy that goes on from here by itself: a gradient tape may ask for several backward passes."""
        return Replicas([execution.fork() for execution in self._executions], self._gradient_sum)

    def give_output_gradients(self, gradients, added):
        """Hands in gradients where the loss lies outside of the pipeline; see `executor.Execution.give_output_gradients`."""
        gradients = iter(gradients)
        for execution, count in zip(self._executions, self._counts):
            execution.give_output_gradients([next(gradients) for _ in range(count)], added)

    def state_updates(self):
        """Returns pairs (Keras variable, new value) of moving statistics and other state, after all forward actions."""
        return step_state.updates(self._executions[0].stages, self.state)

    @property
    def _counts(self):
        return [execution.num_micro_batches for execution in self._executions]

    def _sum_weight_gradients(self, index, variables, parts):
        if not variables:
            return []
        devices = [execution.stages[index].device for execution in self._executions]
        owners = [variable_placement.owner(variable, devices) for variable in variables]
        rows = {place for place, each in enumerate(parts[0]) if isinstance(each, step_sums.Rows)}
        added_up = [place for place in range(len(variables)) if place not in rows]
        sums = self._gradient_sum(
            [[part[place] for place in added_up] for part in parts], devices, [owners[place] for place in added_up])
        found = dict(zip(added_up, sums)) | {
            place: device_kinds.call(owners[place], step_sums.join, [part[place] for part in parts]) for place in rows}
        return [found[place] for place in range(len(variables))]
