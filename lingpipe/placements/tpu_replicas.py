"""Replicas of K TPU cores each, and their training step."""

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from lingpipe import hyperparams
from lingpipe.devices import collectives
from lingpipe.input import row_order
from lingpipe.models import base_task
from lingpipe.optimizers import training_optimizer
from lingpipe.training import experiment, train_program

_STATIC_SHAPES = tf.distribute.RunOptions(experimental_enable_dynamic_batch_size=False)


def assign_cores(topology: tf.tpu.experimental.Topology, num_stages: int) -> tf.tpu.experimental.DeviceAssignment:
    """Assign cores to as many replicas as fit. Each replica gets a box of cores."""
    mesh = [int(size) for size in topology.mesh_shape]
    return tf.tpu.experimental.DeviceAssignment.build(
        topology, computation_shape=computation_shape(mesh, num_stages), num_replicas=math.prod(mesh) // num_stages)


def computation_shape(mesh: list[int], num_stages: int) -> list[int]:
    """Return the sizes of a box of `num_stages` cores, with short paths between stages.

    ::

        4 stages in a 4x4x1 torus of chips with 2 cores     2 chips side by side: [2, 1, 1, 2]

    Args:
        mesh: sizes of the system `[x, y, z, cores of a chip]`.

    Raises:
        ValueError: no box of `num_stages` cores divides the mesh.
    """
    divisors = [[size for size in range(1, limit + 1) if limit % size == 0] for limit in mesh]
    boxes = [box for box in itertools.product(*divisors) if math.prod(box) == num_stages]
    if not boxes:
        possible = sorted({math.prod(box) for box in itertools.product(*divisors)})
        raise ValueError(
            f'num_partitions={num_stages} cores do not fill a TPU system of {mesh} (x, y, z, cores of a chip): a '
            f'replica must be a box that divides it. Set num_partitions to one of {possible}.')
    # Prefer more cores per chip, then shorter sides.
    best = min(boxes, key=lambda box: (-box[-1], sum(box), max(box)))
    return list(best)


class TpuReplicas(experiment.Placement, collectives.Group):
    """Replicas that fill an initialised TPU system. Each replica is a box of K cores."""

    _is_spmd = False  # whether all cores of a replica run the same program; else each runs its part of a program

    def __init__(self, resolver: tf.distribute.cluster_resolver.TPUClusterResolver, topology: Any,
                 num_stages: int) -> None:
        self.num_stages = num_stages
        self._iterators: list[Any] = []
        self.strategy = tf.distribute.TPUStrategy(
            resolver, experimental_device_assignment=assign_cores(topology, num_stages),
            experimental_spmd_xla_partitioning=self._is_spmd)
        self.count = self.strategy.num_replicas_in_sync

    def run(self, function: Callable, arguments: tuple) -> Any:
        """Build a program that every replica runs. Return the result of the first replica.

        Args:
            arguments: tuple of nests of tensors or distributed values. Distributed values have one value per replica.
        """
        with tf.device(None):
            results = self.strategy.run(function, args=arguments, options=_STATIC_SHAPES)
            return tf.nest.map_structure(lambda value: self.strategy.experimental_local_results(value)[0], results)

    def distribute(self, batches: Callable[[row_order.Share], tf.data.Dataset]) -> Any:
        """Return an iterator over batches. Each replica gets its own rows of a batch, always the same number."""
        iterator = iter(self.strategy.distribute_datasets_from_function(lambda context: rows_of_host(batches, context)))
        self._iterators.append(iterator)  # kept: deleting one whose host is in use can deadlock TensorFlow
        return iterator

    def sum_inside_program(self, tensor: tf.Tensor, group_size: int) -> tf.Tensor:
        """Sum a tensor over each group of consecutive replicas."""
        groups = np.arange(self.count, dtype=np.int32).reshape(-1, group_size)
        return tf.raw_ops.CrossReplicaSum(input=tensor, group_assignment=groups)  # in SPMD, each core sums its slice

    def index_on(self, device: str) -> tf.Tensor:
        """Return the number of the running replica."""
        return tf.cast(tf.distribute.get_replica_context().replica_id_in_sync_group, tf.int64)


def rows_of_host(batches: Callable[[row_order.Share], tf.data.Dataset],
                 context: tf.distribute.InputContext) -> tf.data.Dataset:
    """Return the dataset of one host, with only the rows of the host's replicas."""
    num_hosts, num_replicas = context.num_input_pipelines, context.num_replicas_in_sync
    dataset = batches(row_order.Share(context.input_pipeline_id, num_hosts))
    here = num_replicas // num_hosts
    sizes = {spec.shape[0] for spec in tf.nest.flatten(dataset.element_spec)}
    if None in sizes or any(size % here for size in sizes):
        raise ValueError(
            f'On each of {num_hosts} hosts, a batch has {sorted(map(str, sizes))} rows for {here} replicas: each must '
            f'get as many. Set batch_size to a multiple of {num_replicas}, with drop_remainder=True in the input.')

    def split(tensor):
        return tf.reshape(tensor, [here, tensor.shape[0] // here, *tensor.shape[1:]])

    return dataset.map(lambda *batch: tf.nest.map_structure(split, batch)).unbatch()


class ReplicaTrainProgram(train_program.TrainProgram):
    """A `TrainProgram` on `TpuReplicas`, in which the host starts and checks the step.

    ::

        host               batch, step ─┐                             ┌─> if finite count the step, else stop
        program of each                 └─> pipeline ─> sums over     ┤
        replica                             replicas ─> update ───────┴─> if finite keep it, else restore

    A subclass defines `_step_of_replica`.
    """

    def __init__(self, task: base_task.BaseTask, train_params: hyperparams.Params, cores: TpuReplicas) -> None:
        if task.body.computes_in_float16:
            raise ValueError("dtype_policy='mixed_float16' is not for TPUs. Set it to 'mixed_bfloat16' or 'float32'.")
        self._cores = cores
        super().__init__(task, train_params)

    def iterate(self, batches: Callable) -> Any:
        return self._cores.distribute(batches)

    def _step(self, batch):
        names = []

        def step_of_replica(*arguments):
            numbers = self._step_of_replica(*arguments)
            names[:] = numbers
            return tf.stack(list(numbers.values()))  # one tensor: each output of a program goes to the host by itself

        with tf.device('CPU:0'):  # a program on TPU cores cannot read the host's variables
            numbers = self._numbers()
        row = self._cores.run(step_of_replica, (batch, *numbers))
        with tf.device('CPU:0'):  # the host checks the step afterwards, because a program cannot stop in the middle
            numbers = dict(zip(names, tf.unstack(row, len(names))))
            is_finite = training_optimizer.is_finite(numbers['loss'], numbers['gradient_norm'])
            super()._if_finite(is_finite, lambda: self.optimizer.iterations.assign_add(1))
        return numbers

    def _numbers(self):
        """Return the numbers that the host passes to `_step_of_replica`."""
        return (self.global_step.read_value(),)

    def _step_of_replica(self, batch, step):
        """Build a replica's step, and return {name: scalar tensor} with 'loss', 'gradient_norm' and other metrics."""
        raise NotImplementedError
