"""The training step that the workers of a cluster do together."""

import keras
import tensorflow as tf

from lingpipe.training import train_program


class WorkerTrainProgram(train_program.TrainProgram):
    """A `TrainProgram` on one of several `Workers`: all do the same steps, each on its rows, and stop after the same one.

    ::

        my rows ─> pipeline ─┐                        ┌─> finite? clip, update: the same on all workers
        others  ─> pipeline ─┴─> sums over workers ───┤
        am I to stop? ───────────────────────────────>┴─> is anybody to stop? then all do, after this step

    Args:
        task: a `BaseTask` whose body is built on the devices of the worker.
        train_params: the Params of training.
        workers: the `Workers`.
    """

    def __init__(self, task, train_params, workers):
        self._workers = workers
        super().__init__(task, train_params)
        with tf.device('CPU:0'):
            self._agreed = tf.Variable(False, trainable=False, name='agreed_to_stop')
        self._of_chief = tf.function(lambda number: workers.of_chief('CPU:0', number), autograph=False)

    def iterate(self, dataset):
        return iter(self._workers.rows_of_worker(dataset))

    def state_restored(self):
        """Gives every worker what the chief has: it alone need see the checkpoint."""
        averages = self.average.averages.values() if self.average else ()
        changing = [*self.named_variables.values(), *self.optimizer.variables, *averages, self.global_step]
        self._workers.copy_from_chief([
            variable.value if isinstance(variable, keras.Variable) else variable for variable in changing])

    def should_stop(self, unused_interrupted):
        return bool(self._agreed)

    def run(self, iterator, num_steps):
        """Trains for as many steps as the chief is to: sums meet by their place in a loop, which must be the same one."""
        num_steps = int(self._of_chief(tf.constant(num_steps, tf.int64)))
        with self._workers.watchdog.watch(num_steps):  # not while the chief writes or evaluates
            return super().run(iterator, num_steps)

    def _step(self, batch):
        with self._workers.active():
            with tf.device('CPU:0'):
                self._votes = self._workers.sum('CPU:0', tf.cast(self.stopping.read_value(), tf.int32))
            row = super()._step(batch)
            with tf.device('CPU:0'), tf.control_dependencies([row]):
                self._agreed.assign(self._votes > 0)
                return tf.identity(row)

    def _value_and_grad(self, batch, step, loss_scale=None):
        """Hands out the loss when all sums of the step have ended: one that is not finite ends the step on every worker by itself."""
        out, metrics = super()._value_and_grad(batch, step, loss_scale)
        with tf.device('CPU:0'), tf.control_dependencies([self._votes, *(value for _, value in out.state_updates)]):
            return out._replace(loss=tf.identity(out.loss)), metrics

    def _is_to_stop(self):
        return self._agreed.read_value()
