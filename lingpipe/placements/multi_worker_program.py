"""The training step of one of several workers, and a digest to check that all of them build the same graph."""

import hashlib
from typing import Any

import keras
import tensorflow as tf

from lingpipe.cluster import waits
from lingpipe.input import batch_share
from lingpipe.partition import layer_analysis
from lingpipe.training import train_program

_DIFFERENT = ('config', 'config_proto', 'container', 'shared_name', 'token')  # between processes


class WorkerTrainProgram(train_program.TrainProgram):
    """A `TrainProgram` on one of several `Workers`: all run the same steps, each on its rows, and stop together.

    ::

        my rows ─> pipeline ─┐                        ┌─> finite? clip, update: the same on all workers
        others  ─> pipeline ─┴─> sums over workers ───┤
        did a signal stop me? ───────────────────────>┴─> did a signal stop any? then all stop after this step
    """

    def __init__(self, task: Any, train_params: Any, workers: Any) -> None:
        self._workers = workers
        super().__init__(task, train_params)
        with tf.device('CPU:0'):
            self._agreed = tf.Variable(False, trainable=False, name='agreed_to_stop')
        self._of_chief = tf.function(lambda number: workers.of_chief('CPU:0', number), autograph=False)
        self._num_calls, self._awaits_chief = 0, False

    def iterate(self, batches: Any) -> Any:
        return iter(batches(batch_share.Share(self._workers.index, self._workers.count)))

    def state_restored(self) -> None:
        """Copy the chief's state to every worker, so that only the chief needs the checkpoint."""
        averages = self.average.averages.values() if self.average else ()
        changing = [*self.named_variables.values(), *self.optimizer.variables, *averages, self.global_step,
                    self.input_position]
        self._workers.copy_from_chief([
            variable.value if isinstance(variable, keras.Variable) else variable for variable in changing])

    def should_stop(self, interrupted: Any) -> Any:
        return bool(self._agreed)

    def run(self, iterator: Any, num_steps: int) -> Any:
        """Train for as many steps as the chief: sums are matched by their position in the loop over steps."""
        self._num_calls, self._awaits_chief = self._num_calls + 1, True
        num_steps = int(self._of_chief(tf.constant(num_steps, tf.int64)))
        self._awaits_chief = False
        return super().run(iterator, num_steps)

    def position(self) -> int | None:
        """Return a number that changes with each step; None also while this worker waits for the chief's other work."""
        return None if self._awaits_chief else super().position()

    def watching_chief(self) -> waits.Wait:
        """Return the scope in which warnings report that this worker waits while the chief writes or evaluates.

        There is no timeout: the chief's own work has timeouts, and the worker ends with the chief.
        """
        return waits.Wait(
            f'worker:0 ({self._workers.config.jobs["worker"][0]}), which writes or evaluates between steps', 0,
            position=lambda: self._num_calls if self._awaits_chief else None)

    def _step(self, batch):
        with self._workers.active():
            with tf.device('CPU:0'):
                self._votes = self._workers.sum('CPU:0', tf.cast(self.stopping.read_value(), tf.int32))
            numbers = super()._step(batch)
            with tf.device('CPU:0'), tf.control_dependencies(list(numbers.values())):
                self._agreed.assign(self._votes > 0)
                return {name: tf.identity(number) for name, number in numbers.items()}

    def _value_and_grad(self, batch, step, loss_scale=None):
        """Make the loss wait for all sums of a step, so that no worker waits for another if the loss is not finite."""
        out, metrics = super()._value_and_grad(batch, step, loss_scale)
        with tf.device('CPU:0'), tf.control_dependencies([self._votes, *(value for _, value in out.state_updates)]):
            return out._replace(loss=tf.identity(out.loss)), metrics

    def _is_to_stop(self):
        return self._agreed.read_value()


def graph_digest(graph: tf.Graph) -> str:
    """Return a digest of the operations of a graph, of their constants, and of the functions that it calls.

    It is the same in every process that has built the graph from the same code. Names and devices do not count: names
    have numbers that depend on what was built before.
    """
    found = hashlib.sha256()
    positions: dict[str, int] = {}
    for operation in graph.get_operations():
        positions[operation.name] = len(positions)
        inputs = [(positions.get(tensor.op.name), tensor.value_index) for tensor in operation.inputs]
        inner = [graph_digest(called) for called in layer_analysis.called_graphs(operation, graph)]
        found.update(repr((operation.type, inputs, inner)).encode())
        for name, value in sorted(operation.node_def.attr.items()):
            if name not in _DIFFERENT and name[0] != '_' and not value.HasField('func') and not value.list.func:
                found.update(name.encode() + value.SerializeToString(deterministic=True))
    return found.hexdigest()
