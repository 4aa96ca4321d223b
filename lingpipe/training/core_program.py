"""The training step as one program of the logical cores of a TPU system, on every replica."""

import tensorflow as tf

from lingpipe.devices import variable_placement
from lingpipe.optimizers import device_functions, device_placement
from lingpipe.training import replica_program


class CoreTrainProgram(replica_program.ReplicaTrainProgram):
    """A `ReplicaTrainProgram` of which each core does its stage, with the variables that live there.

    Args:
        task: a `BaseTask` whose body is built on the cores.
        train_params: the Params of training.
        cores: the `LogicalCores`.

    Raises:
        ValueError: layers compute in float16.
    """

    def __init__(self, task, train_params, cores):
        self._reads = device_functions.DeviceFunctions(_read)
        self._restores = device_functions.DeviceFunctions(_restore_unless)
        with cores.active():
            super().__init__(task, train_params, cores)

    def _numbers(self):
        return (*super()._numbers(), self.optimizer.iterations.value.read_value(),
                tf.convert_to_tensor(self.optimizer.learning_rate))

    def _step_of_replica(self, batch, step, iterations, learning_rate):
        out, metrics = self._value_and_grad(batch, step)
        norm = tf.sqrt(out.squared_norm)
        changing = self._changing_variables()
        before = self._reads(changing)
        self._update(out, norm, step, lambda gradients: device_placement.apply_values(
            self.optimizer, gradients, self._trainable, learning_rate, iterations))
        self._restores(changing, (before,), (tf.math.is_finite(out.loss) & tf.math.is_finite(norm),))
        return self._row(norm, metrics)

    def _changing_variables(self):
        """Everything that a step changes on the cores: weights, moving statistics, slots and averages."""
        averages = self.average.averages.values() if self.average else ()
        slots = [variable for variable in self.optimizer.variables if hasattr(variable.value, 'logical_core')]
        return [*self.named_variables.values(), *slots, *averages]


def _read(variables):
    return [variable_placement.native(variable).read_value() for variable in variables]


def _restore_unless(variables, values, is_finite):
    """Costs no memory: the compiler joins the choice with the arithmetic of the update."""
    for variable, value in zip(map(variable_placement.native, variables), values):
        variable.assign(tf.where(is_finite, variable.read_value(), value))
