"""Replicas of K TPU cores each. All cores run the same program."""

from typing import Any

import tensorflow as tf

from lingpipe import hyperparams
from lingpipe.models import base_task
from lingpipe.optimizers import training_optimizer
from lingpipe.partition import balancing
from lingpipe.placements import tpu_replicas
from lingpipe.private_api import xla_sharding
from lingpipe.spmd import spmd_pipeline, spmd_step, spmd_variables
from lingpipe.stages import losses
from lingpipe.training import train_program

_HOST = 'CPU:0'


class SpmdCores(tpu_replicas.TpuReplicas):
    """Replicas that each run a pipeline as one program. XLA partitions the program over the replica's cores.

    ::

        replica 0    core 0    core 1    core 2         every core runs the same program on its slice of each tensor;
                       :         :         :            XLA adds transfers between the cores of a replica; each ":"
        replica 1    core 0    core 1    core 2         sums gradient slices over the replicas

    Attributes:
        grid: names of the cores, `[replicas][K]`.
        devices: the host's name, K times. A task is built, saved and evaluated on the host.
    """

    _is_spmd = True

    def __init__(self, resolver: tf.distribute.cluster_resolver.TPUClusterResolver, topology: Any,
                 num_stages: int) -> None:
        super().__init__(resolver, topology, num_stages)
        cores = []
        for index in range(num_stages):
            with self.strategy.extended.experimental_logical_device(index):
                cores.append(self.strategy.extended.worker_devices)
        self.grid = [list(row) for row in zip(*cores)]
        self.devices = [_HOST] * num_stages

    def program(self, task: base_task.BaseTask, train_params: hyperparams.Params,
                batch_spec: tuple) -> train_program.TrainProgram:
        return SpmdTrainProgram(task, train_params, self, batch_spec[0])

    @property
    def is_partitioned(self) -> bool:
        """Whether a replica has more than one core."""
        return self.num_stages > 1

    def join(self, slices: list[list], dimension: int | None) -> tf.Tensor:
        """Join the slices of a variable into a handle for `read` and `assign`. Call this method outside programs.

        Args:
            slices: one `tf.Variable` per core, `[replicas][K]`.
            dimension: dimension that is cut into slices; None: each core has the whole variable.
        """
        with tf.device(None):
            handles = [self._join_cores(row, dimension) for row in slices]
            # The TPU's compiler turns a read or an assignment into one on every core.
            return tf.raw_ops.TPUReplicatedInput(inputs=handles, is_mirrored_variable=True)

    def _join_cores(self, variables, dimension):
        handles, shape = [variable.handle for variable in variables], variables[0].shape
        if self.num_stages == 1:
            return handles[0]
        if dimension is None:
            return xla_sharding.replicate(tf.raw_ops.TPUPartitionedInputV2(inputs=handles, partition_dims=[]))
        cuts = [self.num_stages if axis == dimension else 1 for axis in range(shape.rank)]
        whole = [size * cut for size, cut in zip(shape, cuts)]
        joined = tf.raw_ops.TPUPartitionedInputV2(inputs=handles, partition_dims=cuts)
        return xla_sharding.split(joined, dimension, self.num_stages, input_shape=whole)

    def read(self, handle: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
        """Read a whole variable through a handle from `join`. Call this method inside a program."""
        return tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype)

    def assign(self, handle: tf.Tensor, value: Any) -> None:
        """Assign each core its slice of a new value. Call this method inside a program."""
        tf.raw_ops.AssignVariableOp(resource=handle, value=value)

    def sum(self, device: str, tensors: Any) -> Any:
        """Sum a nest of tensors over all replicas. Call this method inside a program."""
        return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, tensors)


class SpmdTrainProgram(tpu_replicas.ReplicaTrainProgram):
    """A `ReplicaTrainProgram` that runs an `SpmdStep`. The task is built on the host, and trained on the cores.

    Args:
        input_specs: nest of `tf.TensorSpec` `[batch, ...]` of the body's input.

    Raises:
        ValueError: the body or `train_params` cannot be used with this program.
    """

    def __init__(self, task: base_task.BaseTask, train_params: hyperparams.Params, cores: SpmdCores,
                 input_specs: Any) -> None:
        validate(task.body.params)
        self._pipeline = spmd_pipeline.of_layer(task.body, input_specs, cores.is_partitioned)
        super().__init__(task, train_params, cores)
        self._variables = spmd_variables.SpmdVariables(
            self._spmd_step.variables(self.average and self.average.average_of), self._pipeline.outer_dimension, cores)
        self._step_of_host = 0

    def _make_optimizer(self):
        """Make the optimizer on the host."""
        body = self._task.body
        with tf.device(_HOST):
            optimizer = training_optimizer.make_optimizer(self._params)
            self._spmd_step = spmd_step.SpmdStep(  # computes the updates on the cores
                self._pipeline, losses.as_metrics(self._task.loss_and_metrics), optimizer, body.params.random_seed,
                self._params.clip_gradient_norm_to_value, self._cores,
                training_optimizer.step_function(self._params.ema_decay))
        return optimizer

    def _averaged_variables(self):
        """Return all variables, because `SpmdStep` averages every variable."""
        return self.named_variables

    @property
    def partitions(self) -> list[balancing.Partition]:
        """List of `Partition`. The first and last also list layers outside the stages, which run on all cores."""
        return [part._replace(device=f'TPU core {index} ({self._cores.count} replicas)')
                for index, part in enumerate(self._task.body.partitions)]

    def state_restored(self) -> None:
        self._variables.to_cores()
        self._step_of_host = int(self.global_step)

    def before_save(self) -> None:
        step = int(self.global_step)
        if step != self._step_of_host:
            self._variables.to_host()
            self._step_of_host = step

    def _step(self, batch):
        self._handles = self._variables.joined()
        return super()._step(batch)

    def _step_of_replica(self, batch, step):
        inputs, *targets = batch
        with self._cores.active():
            new, metrics = self._spmd_step(self._variables.read(self._handles, step), inputs, tuple(targets))
        self._variables.assign(self._handles, new)
        norm = metrics.pop('gradient_norm')
        return train_program.numbers_of(norm, {'loss': metrics.pop('loss'), **metrics})


def validate(body_params: hyperparams.Params) -> None:
    """Raise ValueError if the schedule is impossible in one program for all cores."""
    p = body_params
    if p.schedule != ('gpipe' if p.num_virtual_stages == 1 else 'circular'):
        raise ValueError(
            f"schedule={p.schedule!r} with num_virtual_stages={p.num_virtual_stages} does not go with "
            "tpu_route='spmd', whose cores all work in step. Set schedule='gpipe' and num_virtual_stages=1, "
            "schedule='circular' with more, or tpu_route='stage_programs'.")
