"""The training step as one program that every replica of a TPU system runs: what host and program see to."""

import tensorflow as tf

from lingpipe.training import train_program


class ReplicaTrainProgram(train_program.TrainProgram):
    """A `TrainProgram` on `TpuReplicas`: what differs is where the step begins and ends.

    ::

        host               batch, step ─┐                             ┌─> finite? count steps : stop
        program of each                 └─> pipeline ─> sums over     ┤
        replica                             replicas ─> update ───────┴─> where finite keep it, else what was before

    A program can neither stop in the middle nor read the host's variables. A subclass defines `_step_of_replica`.

    Args:
        task: a `BaseTask` whose body is built.
        train_params: the Params of training.
        cores: the `TpuReplicas`.

    Raises:
        ValueError: layers compute in float16.
    """

    def __init__(self, task, train_params, cores):
        if task.body.computes_in_float16:
            raise ValueError("dtype_policy='mixed_float16' is not for TPUs. Set it to 'mixed_bfloat16' or 'float32'.")
        self._cores = cores
        super().__init__(task, train_params)

    def iterate(self, dataset):
        return self._cores.distribute(dataset)

    def _step(self, batch):
        with tf.device('CPU:0'):
            numbers = self._numbers()
        row = self._cores.run(self._step_of_replica, (batch, *numbers))
        with tf.device('CPU:0'):
            check = tf.debugging.Assert(tf.reduce_all(tf.math.is_finite(row[:2])), [train_program.NON_FINITE])
        with tf.control_dependencies([check]):
            self.optimizer.iterations.assign_add(1)
            self.global_step.assign_add(1)
            return tf.identity(row)

    def _numbers(self):
        """Returns a tuple of the host's numbers that `_step_of_replica` takes after the batch: the step."""
        return (self.global_step.read_value(),)

    def _step_of_replica(self, batch, step):
        """Lays out the step of a replica.

        Args:
            batch: tuple of nests of tensors `[batch, ...]`, the rows of the replica.
            step: int64 scalar, the number of steps done.

        Returns:
            Row of the step: gradient norm, loss, then the other metrics in the order of `_metric_names`.
        """
        raise NotImplementedError
