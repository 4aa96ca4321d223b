"""Workers that each train a pipeline on a share of the batch (`--cluster=multi_worker`)."""

import contextlib
import hashlib
import itertools
import math
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from lingpipe.cluster import answers, waits
from lingpipe.devices import collectives, device_kinds
from lingpipe.input import row_order
from lingpipe.private_api import eager_context
from lingpipe.training import experiment, train_program, watchdog

_BYTES_OF_PACK = 2**25
_FIRST_GROUP = 2**29  # beyond the keys of the strategy and of `collectives.sum_over_group`
_HOST = 'CPU:0'
ENDED = 'ended by an error of its own: worker:'  # in the errors that other workers get


class Workers(collectives.Group, experiment.Placement):
    """The workers of a cluster. Each worker runs the same step on its own rows.

    ::

        worker 0 (chief)   stage 0 ─> stage 1 ─> stage 2 ─> loss     checkpoints, curves, evaluation
                              :          :          :
        worker 1           stage 0 ─> stage 1 ─> stage 2 ─> loss     gradients of a stage are summed over the workers'
                                                                     devices for this stage

    `tf.distribute.MultiWorkerMirroredStrategy` connects the processes, and checks heartbeats. LingPipe itself sums the
    gradients of each stage on the stage's device. The sums have the same bits on all workers.

    Create `Workers` before any other use of TensorFlow in the process. Only virtual devices may be set up earlier. The
    constructor returns when all workers have connected.

    Attributes:
        devices: names of this worker's devices, one per partition and replica; empty until they are chosen.
    """

    def __init__(self, config: Any, dog: watchdog.Watchdog | None = None) -> None:
        addresses = config.jobs['worker']
        self.config = config
        self.count, self.index = len(addresses), config.task_index
        self.devices: list[str] = []
        self.watchdog = dog or watchdog.Watchdog(0)
        resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec({'worker': addresses}), task_type='worker', task_id=self.index, num_accelerators={},
            rpc_layer='grpc')
        options = tf.distribute.experimental.CommunicationOptions(
            implementation=tf.distribute.experimental.CommunicationImplementation.RING)
        with answers.connecting(config):
            self.strategy = tf.distribute.MultiWorkerMirroredStrategy(resolver, options)
        self._groups, self._tokens, self._keys = {}, {}, itertools.count(1)

    def program(self, task: Any, train_params: Any, batch_spec: Any) -> Any:
        """Wait for all workers, and return the training program. Raise ValueError if models or losses differ."""
        def evaluate(images, targets):
            return task.body.evaluate(task.loss_and_metrics, images, targets)

        images, *targets = batch_spec
        graph = tf.function(evaluate, autograph=False).get_concrete_function(images, tuple(targets)).graph
        with waits.Wait(f'the model to be built on all {self.count} workers', 0):
            self.check_same(_operations(graph.as_graph_def()), 'computes another model or loss')
        return WorkerTrainProgram(task, train_params, self)

    def sum(self, device: str, tensors: Any) -> Any:
        """Sum tensors over all workers. All workers must make the same calls."""
        # Sums of the strategy would gather the gradients of all stages on one device, where they may not fit.
        flat = tf.nest.flatten(tensors)
        if self.count == 1 or not flat:
            return tensors
        sums = [None] * len(flat)
        with tf.device(device):
            for places in _packs(flat):
                pack = [flat[place] for place in places]
                vector = self._sum_vector(device, tf.concat([tf.reshape(tensor, [-1]) for tensor in pack], 0))
                for place, total in zip(places, _unpacked(vector, pack)):
                    sums[place] = total
        return tf.nest.pack_sequence_as(tensors, sums)

    def of_chief(self, device: str, tensor: Any) -> tf.Tensor:
        """Return an exact copy of the chief's tensor. All workers must make the same calls."""
        integers = _as_integers(tensor)
        own = tf.zeros_like(integers) if self.index else integers
        return _from_integers(self.sum(device, own), tensor.dtype)

    def agree_on(self, device: str, aggregation: Any, before: Any, after: Any) -> Any:
        """Combine the values that the workers have computed for a variable; see `Group.agree_on`."""
        if self.count == 1:
            return after
        if aggregation == 'mean':
            return self.sum(device, after) / self.count
        if aggregation == 'sum':
            return before + self.sum(device, after - before)
        return self.of_chief(device, after)

    def copy_from_chief(self, variables: list) -> None:
        """Set `variables` to the chief's values. All workers must give the same list."""
        @tf.function(autograph=False)
        def copy():
            for variable in variables:
                with tf.device(_HOST):
                    value = self.of_chief(_HOST, tf.identity(variable.read_value()))
                with tf.device(variable.device):
                    variable.assign(value)

        copy()

    def check_same(self, text: Any, difference: str) -> None:
        """Raise ValueError if `text` differs between workers. The message names a worker whose text differs.

        Args:
            difference: what the message says about this worker, such as 'was started with other params'.
        """
        digest = np.frombuffer(hashlib.sha256(text.encode()).digest(), np.int32)
        rows = np.zeros([self.count, digest.size], np.int32)
        rows[self.index] = digest
        rows = tf.function(lambda: self.sum(_HOST, tf.constant(rows)), autograph=False)().numpy()
        others = [index for index, row in enumerate(rows) if (row != rows[0]).any()]
        if others:
            raise ValueError(
                f'worker:{others[0]} {difference} than worker:0. Start the same command, of the same version, on '
                'machines that are alike.')

    def end_all(self) -> None:
        """Make the all-reduces of all other workers fail with `ENDED`. Call this after an error of this worker."""
        with contextlib.suppress(tf.errors.OpError):  # they have ended already
            eager_context.context().report_error_to_cluster(tf.errors.ABORTED, f'{ENDED}{self.index}')

    def leave(self) -> None:
        """Wait until all workers have finished. Call this before the process ends."""
        with waits.Wait(f'the end of training on all {self.count} workers', 0):  # others may wait for this one
            self._wait_for_all()
            with contextlib.suppress(tf.errors.OpError):  # a worker has already left
                self._wait_for_all()

    def _wait_for_all(self):
        tf.function(lambda: self.sum(_HOST, tf.ones([], tf.int32)), autograph=False)()

    def _sum_vector(self, device, vector):
        hint = 'nccl' if device_kinds.kind_of(device) == 'GPU' else 'ring'
        return tf.raw_ops.CollectiveReduceV2(  # a token per device keeps its sums in one order, as NCCL requires
            input=vector, group_size=self.count, group_key=self._group(device), instance_key=next(self._keys),
            ordering_token=[self._token(device)], merge_op='Add', final_op='Id', communication_hint=hint)

    def _group(self, device):
        """Return the `group_key` of the all-reduces between `device` and its counterparts on other workers."""
        # Numbered by first use, because the device's name differs between workers.
        return _FIRST_GROUP + self._groups.setdefault(device, len(self._groups))

    def _token(self, device):
        if device not in self._tokens:
            with tf.init_scope(), tf.device(device):
                self._tokens[device] = tf.Variable(0.0, trainable=False)
        return self._tokens[device].handle


class WorkerTrainProgram(train_program.TrainProgram):
    """The training program of one worker. All workers run the same steps and stop together.

    ::

        my rows ─> pipeline ─┐                        ┌─> finite? clip, update: the same on all workers
        others  ─> pipeline ─┴─> sums over workers ───┤
        did a signal stop me? ───────────────────────>┴─> did a signal stop any? then all stop after this step
    """

    def __init__(self, task: Any, train_params: Any, workers: Any) -> None:
        self._workers = workers
        super().__init__(task, train_params)
        with tf.device(_HOST):
            self._agreed = tf.Variable(False, trainable=False, name='agreed_to_stop')
        self._of_chief = tf.function(lambda number: workers.of_chief(_HOST, number), autograph=False)
        self._awaits_chief = False

    def iterate(self, batches: Any) -> Any:
        return iter(batches(row_order.Share(self._workers.index, self._workers.count)))

    def state_restored(self) -> None:
        """Copy the chief's state to every worker."""
        averages = self.average.averages.values() if self.average else ()
        changing = [*self.named_variables.values(), *self.optimizer.variables, *averages, self.global_step,
                    self.input_position]
        self._workers.copy_from_chief([  # only the chief reads the checkpoint
            variable.value if isinstance(variable, keras.Variable) else variable for variable in changing])

    def should_stop(self, interrupted: Any) -> Any:
        return bool(self._agreed)

    def run(self, iterator: Any, num_steps: int) -> Any:
        """Train for as many steps as the chief."""
        self._awaits_chief = True
        num_steps = int(self._of_chief(tf.constant(num_steps, tf.int64)))  # the sums of a step wait for all workers
        self._awaits_chief = False
        return super().run(iterator, num_steps)

    def position(self) -> int | None:
        """Return a number that changes with each step, or None during a wait for a batch or the chief."""
        return None if self._awaits_chief else super().position()

    def _step(self, batch):
        with self._workers.active():
            with tf.device(_HOST):
                self._votes = self._workers.sum(_HOST, tf.cast(self.stopping.read_value(), tf.int32))
            numbers = super()._step(batch)
            with tf.device(_HOST), tf.control_dependencies(list(numbers.values())):
                self._agreed.assign(self._votes > 0)
                return {name: tf.identity(number) for name, number in numbers.items()}

    def _value_and_grad(self, batch, step, loss_scale=None):
        """Make the loss available only after this step's sums over workers."""
        out, metrics = super()._value_and_grad(batch, step, loss_scale)
        with tf.device(_HOST), tf.control_dependencies([self._votes, *(value for _, value in out.state_updates)]):
            # Else a worker could stop (loss not finite) while others wait.
            return out._replace(loss=tf.identity(out.loss)), metrics

    def _is_to_stop(self):
        return self._agreed.read_value()


def _operations(graph):
    """Return the operation types of a graph and its functions."""
    nodes = itertools.chain(graph.node, *(function.node_def for function in graph.library.function))
    return ' '.join(sorted(node.op for node in nodes))  # the same code always gives the same types


def _packs(tensors):
    """Divide tensors into groups that are summed together; each group is a list of indices into `tensors`."""
    packs, open_packs = [], {}
    for place, tensor in enumerate(tensors):
        size = tensor.dtype.size * math.prod(tensor.shape)
        pack, num_bytes = open_packs.get(tensor.dtype, (None, 0))
        if pack is None or num_bytes + size > _BYTES_OF_PACK:
            pack, num_bytes = [], 0
            packs.append(pack)
        pack.append(place)
        open_packs[tensor.dtype] = pack, num_bytes + size
    return packs


def _unpacked(vector, like):
    parts = tf.split(vector, [math.prod(tensor.shape) for tensor in like])
    return [tf.reshape(part, tensor.shape) for part, tensor in zip(parts, like)]


def _as_integers(tensor):
    """Convert a tensor to integers, without loss."""
    if tensor.dtype == tf.float64:
        return tf.bitcast(tensor, tf.int64)  # a sum of floats would turn -0.0 into 0.0
    if tensor.dtype.is_floating:
        return tf.bitcast(tf.cast(tensor, tf.float32), tf.int32)
    return tf.cast(tensor, tf.int64)


def _from_integers(integers, dtype):
    if dtype == tf.float64:
        return tf.bitcast(integers, tf.float64)
    if dtype.is_floating:
        return tf.cast(tf.bitcast(integers, tf.float32), dtype)
    return tf.cast(integers, dtype)
