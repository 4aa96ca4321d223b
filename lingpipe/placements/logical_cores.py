"""Replicas of a pipeline on TPU cores, with one core per stage."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from lingpipe import hyperparams
from lingpipe.devices import device_kinds, variable_placement
from lingpipe.models import base_task
from lingpipe.optimizers import device_placement
from lingpipe.placements import tpu_replicas
from lingpipe.training import train_program


class LogicalCores(tpu_replicas.TpuReplicas):
    """Replicas that are pipelines, with one core per stage.

    ::

        replica 0    core 0 ─> core 1 ─> core 2         one program has all stages of a replica; it assigns each
                       :         :         :            operation and variable to a core; all-reduces run between
        replica 1    core 0 ─> core 1 ─> core 2         the cores with the same number in all replicas
    """

    def __init__(self, resolver: tf.distribute.cluster_resolver.TPUClusterResolver, topology: Any,
                 num_stages: int) -> None:
        super().__init__(resolver, topology, num_stages)
        self.devices = [device_name(index) for index in range(num_stages)]

    def creating(self) -> Any:
        return self.active()

    def program(self, task: Any, train_params: Any, batch_spec: Any) -> Any:
        return CoreTrainProgram(task, train_params, self)

    def evaluate(self, function: Callable, batch: Any) -> dict[str, tuple]:
        """Evaluate the same batch on every replica."""
        # Totals are sums over replicas.
        return tf.nest.map_structure(lambda total: total / self.count, self.run(function, (batch,)))

    def run(self, function: Callable, arguments: tuple) -> Any:
        """Build a program that every replica runs on its cores; see `TpuReplicas.run`."""
        def on_cores(*arguments):
            with self.active(), tf.device(self.devices[-1]):
                return function(*arguments)

        return super().run(on_cores, arguments)

    def sum(self, device: str, tensors: Any) -> Any:
        """Sum tensors over all replicas. If `device` is not a core, return the tensors unchanged."""
        if not device_kinds.is_logical_core(device) or not tf.nest.flatten(tensors):
            return tensors
        with tf.device(device):
            return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, tensors)

    def index_on(self, device: str) -> int | tf.Tensor:
        """Return the index of the current replica, or 0 if `device` is not a core."""
        if not device_kinds.is_logical_core(device):
            return 0
        with tf.device(device):
            return super().index_on(device)

    @contextlib.contextmanager
    def creating_on(self, device: str) -> Iterator[Any]:
        """Create variables on a core of every replica. The attribute `logical_core` of a variable names the core."""
        index = tf.DeviceSpec.from_string(device).device_index

        def create(next_creator, **arguments):
            # Each replica changes its own copy. The copies stay equal, because gradients are sums over all replicas.
            variable = next_creator(**{**arguments, 'aggregation': tf.VariableAggregation.NONE})
            variable.logical_core = device_name(index)
            return variable

        with tf.device(None), self.strategy.scope(), self.strategy.extended.experimental_logical_device(index), \
                tf.variable_creator_scope(create):
            yield


def device_name(index: int) -> str:
    """Return the name of a core for `tf.device` inside a program."""
    return f'/device:{device_kinds.LOGICAL_CORE}:{index}'


class CoreTrainProgram(tpu_replicas.ReplicaTrainProgram):
    """A `ReplicaTrainProgram` in which each core computes and stores one stage."""

    def __init__(self, task: base_task.BaseTask, train_params: hyperparams.Params, cores: LogicalCores) -> None:
        self._reads = device_placement.DeviceFunctions(_read)
        self._restores = device_placement.DeviceFunctions(_restore_unless)
        with cores.active():
            super().__init__(task, train_params, cores)

    def _numbers(self):
        return (*super()._numbers(), self.optimizer.iterations.value.read_value(),
                tf.convert_to_tensor(self.optimizer.learning_rate))

    def _step_of_replica(self, batch, step, *numbers):
        self._numbers_of_optimizer = numbers
        out, metrics = self._value_and_grad(batch, step)
        return train_program.numbers_of(self._train_on(out, step), metrics)

    def _deciding(self):
        return contextlib.nullcontext()  # in a program on TPU cores, the CPU cannot decide whether to apply a step

    def _if_finite(self, is_finite, update):
        """Update, then restore the old values if the step is not finite."""
        changing = self._changing_variables()
        before = self._reads(changing)
        update()
        self._restores(changing, (before,), (is_finite,))  # if not finite, the host stops training

    def _apply(self, gradients, step):
        iterations, learning_rate = self._numbers_of_optimizer
        device_placement.of(self.optimizer).apply_values(gradients, self._trainable, learning_rate, iterations)

    def _changing_variables(self):
        """Return all variables that a step changes on the cores."""
        averages = self.average.averages.values() if self.average else ()
        slots = [variable for variable in self.optimizer.variables if hasattr(variable.value, 'logical_core')]
        return [*self.named_variables.values(), *slots, *averages]


def _read(variables):
    return [variable_placement.native(variable).read_value() for variable in variables]


def _restore_unless(variables, values, is_finite):
    for variable, value in zip(map(variable_placement.native, variables), values):
        variable.assign(tf.where(is_finite, variable.read_value(), value))  # fused with the update, it costs no memory
