"""The training step as one program that all cores of a replica run on their slices."""

import tensorflow as tf

from lingpipe.pipeline import losses, spmd
from lingpipe.training import optimizer as optimizers
from lingpipe.training import replica_program, spmd_step, spmd_variables


class SpmdTrainProgram(replica_program.ReplicaTrainProgram):
    """A `ReplicaTrainProgram` around an `SpmdStep`: the task is built on the host, and what is trained lies on the cores.

    Args:
        task: a `BaseTask` whose body is built on the host.
        train_params: the Params of training.
        cores: the `SpmdCores`.
        input_specs: nest of `tf.TensorSpec` `[batch, ...]` of the body's input.

    Raises:
        ValueError: layers compute in float16, the layers cannot run so, or the params of training ask for what cannot.
    """

    def __init__(self, task, train_params, cores, input_specs):
        validate(task.body.params, train_params)
        self._pipeline = spmd.of_layer(task.body, input_specs, cores.is_partitioned)
        super().__init__(task, train_params, cores)
        self._variables = spmd_variables.SpmdVariables(
            self._spmd_step.variables(), self._pipeline.outer_dimension, cores)
        self._step_of_host = 0

    def _make_optimizer(self):
        """The optimizer keeps the host's slots and count of steps; the step uses it as a function."""
        body = self._task.body
        with tf.device('CPU:0'):
            optimizer = optimizers.make_optimizer(self._params)
            self._spmd_step = spmd_step.SpmdStep(
                self._pipeline, losses.as_metrics(self._task.loss), optimizer, body.params.random_seed,
                self._params.clip_gradient_norm_to_value, self._cores)
        return optimizer

    @property
    def partitions(self):
        """Layers before and after the stages count with the first and the last one, but run on all cores."""
        return [part._replace(device=f'TPU core {index} ({self._cores.num_replicas} replicas)')
                for index, part in enumerate(self._task.body.partitions)]

    def to_cores(self):
        self._variables.to_cores()
        self._step_of_host = int(self.global_step)

    def to_host(self):
        step = int(self.global_step)
        if step != self._step_of_host:
            self._variables.to_host()
            self._step_of_host = step

    def _step(self, batch):
        self._handles = self._variables.joined()
        return super()._step(batch)

    def _step_of_replica(self, batch, step):
        inputs, *targets = batch
        new, metrics = self._spmd_step(self._variables.read(self._handles, step), inputs, tuple(targets))
        self._variables.assign(self._handles, new)
        norm = metrics.pop('gradient_norm')
        return self._row(norm, {'loss': metrics.pop('loss'), **metrics})


def validate(body_params, train_params):
    """Raises ValueError where params ask for what one program for all cores leaves out.

    Args:
        body_params: `GPipeLayer.Params()`.
        train_params: `task.train` Params.
    """
    p = body_params
    if p.schedule != 'gpipe' or p.num_virtual_stages != 1:
        raise ValueError(
            f"schedule={p.schedule!r} with num_virtual_stages={p.num_virtual_stages} does not go with tpu_route='spmd', whose cores "
            "all work in step. Set schedule='gpipe' and num_virtual_stages=1, or tpu_route='stage_programs'.")
    for field in ('ema_decay', 'l2_regularizer_weight'):
        value = train_params.Get(field)
        if value:
            raise ValueError(f"train.{field}={value} does not go with tpu_route='spmd', whose program leaves it out. Set it to 0, or "
                             "tpu_route to 'stage_programs'.")
