"""Parameter servers: weights live on some processes of a cluster, others compute gradients for them."""

import contextlib
import ctypes
import queue
import threading
import time

import tensorflow as tf

from lingpipe.cluster import watchdog
from lingpipe.placements import asynchronous_program, synchronous_program
from lingpipe.training import placement

MODES = ASYNCHRONOUS, SYNCHRONOUS = ('async', 'sync')
_PROGRAMS = {ASYNCHRONOUS: asynchronous_program.AsynchronousProgram, SYNCHRONOUS: synchronous_program.SynchronousProgram}
_RETRY_SECONDS = 0.1


class RemoteCalls:
    """Calls of one function that are under way at a time, up to a number.

    The coordinator of a cluster only tells when all calls have ended, or waits for one of them; here a thread waits for each::

        call(...) ─> coordinator ─> worker 0, worker 1, ... ─> answers ─> next_answer()
                         a worker dies: another one, or the same once it is back, does its call again

    Args:
        coordinator: `tf.distribute.coordinator.ClusterCoordinator`.
        function: concrete function.
        limit: largest number of calls under way.
    """

    def __init__(self, coordinator, function, limit):
        self._coordinator, self._function, self.limit = coordinator, function, limit
        self.num_under_way = 0
        self._values, self._answers = queue.Queue(), queue.Queue()
        for index in range(limit):
            threading.Thread(target=_fetch, args=(self._values, self._answers), name=f'remote call {index}', daemon=True).start()

    def call(self, arguments):
        """Sends a call off.

        Args:
            arguments: tuple of tensors.

        Raises:
            Exception: what an earlier call failed with.
        """
        self._values.put(self._coordinator.schedule(self._function, args=arguments))
        self.num_under_way += 1

    def next_answer(self, seconds):
        """Waits for a call to end.

        Args:
            seconds: how long to wait.

        Returns:
            What the call returned, as nest of NumPy arrays; None where none has ended yet.

        Raises:
            Exception: what the call failed with.
        """
        try:
            answer, error = self._answers.get(timeout=seconds)
        except queue.Empty:
            self._coordinator.done()  # which raises what the cluster failed with
            return None
        self.num_under_way -= 1
        if error is not None:
            raise error
        return answer


def _fetch(values, answers):
    """Runs in a thread, which must not keep the function from being forgotten while its servers still run."""
    while True:
        value = values.get()
        answers.put(_answer(value))
        del value


def _answer(value):
    """Returns what a call returned and what it failed with, one of them None.

    A worker may die after a call has ended and before its result is here. The coordinator copies the result too, sees the same
    and has the call done again, so an error counts only where the coordinator has set it.
    """
    while True:
        try:
            return value.fetch(), None
        except Exception as error:  # which the thread that asks gets to see
            if value._get_error() is error:
                return None, error
        time.sleep(_RETRY_SECONDS)


class ParameterServers(placement.Placement):
    """A cluster of one chief, workers and servers, as the chief sees it.

    ::

                     batches                     weights
        chief ─────────────────> worker 0 <──────────────── server 0: some of the variables, and their slots
              ─────────────────> worker 1 ────────────────> server 1: the others
                                             gradients

    Each variable lies as a whole on one server, the one that has the fewest bytes of them when it is made. (The strategy's own
    `variable_partitioner` would cut large ones into `ShardedVariable`s. Keras layers can use these, but Keras optimizers keep whole
    slots for them, on one server, and they have no device on which a step could read them.)

    Make it before TensorFlow has done anything else in the process but setting virtual devices up. It waits until all tasks
    of the cluster are there.

    Args:
        config: `cluster_config.ClusterConfig` whose task is the chief.
        update: 'async' or 'sync', one of MODES.
        max_staleness: gradients that are staler than so many updates are dropped; None: no limit.
        timeout_seconds: after so long without an answer of any worker the training ends; 0: never.

    Attributes:
        update: as given.
        max_staleness: as given.
        timeout_seconds: as given.
        num_workers: W.
        names: list of the names of the servers' devices.
        devices: list of the names of the devices of any worker, one a partition of each of its replicas, once chosen.

    Raises:
        ValueError: `max_staleness` cannot be.
    """

    def __init__(self, config, update=ASYNCHRONOUS, max_staleness=None, timeout_seconds=0.0):
        _check(update, max_staleness)
        self.update, self.max_staleness, self.timeout_seconds = update, max_staleness, timeout_seconds
        self._config = config
        self.num_workers = config.num_workers
        self.devices = None
        cluster = tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec(config.jobs), task_type=config.task_type, task_id=config.task_index, rpc_layer='grpc')
        strategy = tf.distribute.ParameterServerStrategy(cluster)
        self._coordinator = _immortal(tf.distribute.coordinator.ClusterCoordinator(strategy))
        self.names = [f'/job:ps/replica:0/task:{index}/device:CPU:0' for index in range(config.num_parameter_servers)]
        self._num_bytes = dict.fromkeys(self.names, 0)

    def choose_devices(self, body_params, kind=None):
        """Chooses where stages are, on every worker and, for evaluation, on the chief: `devices`.

        Args:
            body_params: `GPipeLayer.Params()`.
            kind: 'CPU' or 'GPU'; None: GPUs where the chief and all workers have some.

        Raises:
            ValueError: not all have GPUs.
        """
        p = body_params
        num_gpus = self._num_of_each('GPU')
        if kind == 'GPU' and not num_gpus:
            raise ValueError('--device=gpu: the chief and all workers must have a GPU. Give --device=cpu, or leave it out.')
        kind, count = ('GPU', num_gpus) if num_gpus and kind != 'CPU' else ('CPU', self._num_of_each('CPU'))
        self.devices = p.devices or [f'{kind}:{index % count}' for index in range(p.num_replicas * p.num_partitions)]

    def _num_of_each(self, kind):
        """Returns how many devices of a kind the chief and every worker have at least."""
        tasks = [('chief', 0), *(('worker', index) for index in range(self.num_workers))]
        found = [(spec.job, spec.task) for spec in (
            tf.DeviceSpec.from_string(device.name) for device in tf.config.list_logical_devices(kind))]
        return min(map(found.count, tasks))

    @contextlib.contextmanager
    def creating(self):
        """Makes the servers the home of the variables that are created inside."""
        def create(next_creator, **arguments):
            name = min(self.names, key=self._num_bytes.get)
            with tf.device(name):
                variable = next_creator(**arguments)
            self._num_bytes[name] += variable.dtype.size * variable.shape.num_elements()
            return variable

        with tf.variable_creator_scope(create):
            yield

    def program(self, task, train_params, batch_spec):
        return _PROGRAMS[self.update](task, train_params, self, batch_spec)

    def silent_tasks(self):
        """Returns the list of the tasks that do not answer, such as 'worker:1'."""
        return watchdog.find_silent_tasks(self._config)

    def calls(self, function):
        """Returns the `RemoteCalls` of a function, up to two of them for each worker at a time.

        Args:
            function: `tf.function` traced for its arguments.
        """
        return RemoteCalls(self._coordinator, function, 2 * self.num_workers)


def _immortal(coordinator):
    """Keeps Python from destroying a coordinator when the program ends: it would wait until every lost worker is back."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(coordinator))
    return coordinator


def _check(update, max_staleness):
    if update not in MODES:
        raise ValueError(f'update={update!r} is not possible. Choose one of {MODES}.')
    if max_staleness is not None and update == SYNCHRONOUS:
        raise ValueError(f'max_staleness={max_staleness} is for asynchronous updates: no gradient is stale in synchronous ones. '
                         "Leave it out, or choose update='async'.")
    if max_staleness is not None and max_staleness < 0:
        raise ValueError(f'max_staleness={max_staleness} is not possible. Give a number of updates from 0, or None for no limit.')
