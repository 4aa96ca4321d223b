"""The training step as one program of the logical cores of a TPU system, on every replica."""

import keras
import tensorflow as tf

from lingpipe.optimizers import device_functions, device_placement
from lingpipe.pipeline import variable_values
from lingpipe.training import train_program


class CoreTrainProgram(train_program.TrainProgram):
    """A `TrainProgram` for a `LogicalCores`: what differs is where the step begins and ends.

    ::

        host              batch, step, learning rate ─┐                         ┌─> finite? count steps : stop
        program of each                               └─> pipeline ─> sums over ┤
        replica, on cores                                 replicas   ─> update ─┴─> where finite keep it, else what was before

    A program can neither stop in the middle nor read the host's variables.

    Args:
        task: a `BaseTask` whose body is built on the cores.
        train_params: the Params of training.
        cores: the `LogicalCores`.

    Raises:
        ValueError: layers compute in float16.
    """

    def __init__(self, task, train_params, cores):
        if task.body.computes_in_float16:
            raise ValueError("dtype_policy='mixed_float16' is not for TPUs. Set it to 'mixed_bfloat16' or 'float32'.")
        self._cores = cores
        self._reads = device_functions.DeviceFunctions(_read)
        self._restores = device_functions.DeviceFunctions(_restore_unless)
        with cores.active():
            super().__init__(task, train_params)

    def iterate(self, dataset):
        return self._cores.distribute(dataset)

    def _step(self, batch):
        with tf.device('CPU:0'):
            numbers = (self.global_step.read_value(), self.optimizer.iterations.value.read_value(),
                       tf.convert_to_tensor(self.optimizer.learning_rate))
        row = self._cores.run(self._step_of_replica, (batch, *numbers))
        with tf.device('CPU:0'):
            check = tf.debugging.Assert(tf.reduce_all(tf.math.is_finite(row[:2])), [train_program.NON_FINITE])
        with tf.control_dependencies([check]):
            self.optimizer.iterations.assign_add(1)
            self.global_step.assign_add(1)
            return tf.identity(row)

    def _step_of_replica(self, batch, step, iterations, learning_rate):
        images, *targets = batch
        out = self._task.body.value_and_grad(self._task.loss, images, tuple(targets), step=step, assign_state=False)
        metrics = {'loss': out.loss, **out.metrics}
        self._metric_names = list(metrics)
        norm = tf.sqrt(out.squared_norm)
        is_finite = tf.math.is_finite(out.loss) & tf.math.is_finite(norm)
        changing = self._changing_variables()
        before = self._reads(changing)
        device_placement.apply_values(
            self.optimizer, self._clip(out.gradients, norm), self._trainable, learning_rate, iterations)
        variable_values.assign(out.state_updates)
        if self.average:
            self.average.update(step)
        self._restores(changing, (before,), (is_finite,))
        return tf.stack([norm, *metrics.values()])

    def _changing_variables(self):
        """Everything that a step changes on the cores: weights, moving statistics, slots and averages."""
        averages = self.average.averages.values() if self.average else ()
        slots = [variable for variable in self.optimizer.variables if hasattr(variable.value, 'logical_core')]
        return [*self.named_variables.values(), *slots, *averages]


def _read(variables):
    return [_native(variable).read_value() for variable in variables]


def _restore_unless(variables, values, is_finite):
    """Costs no memory: the compiler joins the choice with the arithmetic of the update."""
    for variable, value in zip(map(_native, variables), values):
        variable.assign(tf.where(is_finite, variable.read_value(), value))


def _native(variable):
    return variable.value if isinstance(variable, keras.Variable) else variable
