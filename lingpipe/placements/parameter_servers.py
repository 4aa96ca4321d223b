"""Parameter servers, the processes of a cluster that store the weights."""

import contextlib
import gc
import math
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from lingpipe import patches
from lingpipe.cluster import answers, cluster_config, waits
from lingpipe.devices import device_kinds
from lingpipe.placements import server_program, synchronous_program
from lingpipe.planner import resolution
from lingpipe.training import errors, experiment, planning, trainer, watchdog

_PROGRAMS = {'async': server_program.AsynchronousProgram, 'sync': synchronous_program.SynchronousProgram}
_RETRY_SECONDS = 0.1


class RemoteCalls:
    """Function calls that any worker may run. At most `limit` calls may be under way.

    A thread waits for each call::

        call(...) ─> coordinator ─> worker 0, worker 1, ... ─> answers ─> next_answer()
                         a worker is lost: its call is repeated on another worker, or on this one when it is back
    """

    def __init__(self, coordinator: tf.distribute.coordinator.ClusterCoordinator, function: Callable,
                 limit: int) -> None:
        self._coordinator, self._function, self.limit = coordinator, function, limit
        self.num_under_way = 0
        self._values: queue.Queue = queue.Queue()
        self._answers: queue.Queue = queue.Queue()
        for index in range(limit):  # TensorFlow's coordinator does not tell which call has ended
            threading.Thread(target=_answer, args=(self._values, self._answers), name=f'remote call {index}',
                             daemon=True).start()

    def call(self, arguments: tuple) -> None:
        """Start a call with tensors. If an earlier call has failed, raise its error instead."""
        self._values.put(self._coordinator.schedule(self._function, args=arguments))
        self.num_under_way += 1

    def next_answer(self, seconds: float) -> Any:
        """Return the next result as NumPy arrays, or None if no call ends in time. Raise the error of a failed call."""
        try:
            answer, error = self._answers.get(timeout=seconds)
        except queue.Empty:
            self._coordinator.done()  # raises the error of a cluster that is lost
            return None
        self.num_under_way -= 1
        if error is not None:
            raise error
        return answer


class ParameterServers(experiment.Placement):
    """A cluster of one chief, workers and servers, as the chief sees it.

    ::

                     batches                     weights
        chief ─────────────────> worker 0 <──────────────── server 0: some of the variables, and their slots
              ─────────────────> worker 1 ────────────────> server 1: the others
                                             gradients

    Each variable is stored on the server that has the fewest bytes.

    Create a `ParameterServers` before any other use of TensorFlow in the process. Only virtual devices may be set up
    earlier. The constructor waits until all tasks of the cluster have connected.

    Args:
        timeout_seconds: training ends if no worker answers for this many seconds; 0: no limit.

    Attributes:
        names: list of the names of the servers' devices.
        devices: list of device names, one for each partition of each replica; None before `choose_devices`.
    """

    def __init__(self, config: cluster_config.ClusterConfig, update: str = 'async',
                 timeout_seconds: float = 0.0) -> None:
        self.update, self.timeout_seconds = update, timeout_seconds
        self._config = config
        self.num_workers = config.num_workers
        self.devices = None
        cluster = tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec(config.jobs), task_type=config.task_type, task_id=config.task_index, rpc_layer='grpc')
        with answers.connecting(config):
            strategy = tf.distribute.ParameterServerStrategy(cluster)
        self._coordinator = patches.never_destroyed(tf.distribute.coordinator.ClusterCoordinator(strategy))
        self.names = [f'/job:ps/replica:0/task:{index}/device:CPU:0' for index in range(config.num_parameter_servers)]
        self._num_bytes = dict.fromkeys(self.names, 0)

    def choose_devices(self, body_params: Any, kind: Any = None) -> None:
        """Choose `devices`, which are the same on all workers and on the chief.

        GPUs are the default if the chief and all workers have GPUs.

        Raises:
            ValueError: `kind` is 'GPU', but the chief or a worker has no GPU.
        """
        p = body_params
        num_gpus = self._num_of_each('GPU')
        if kind == 'GPU' and not num_gpus:
            raise ValueError('--device=gpu: the chief and all workers must have a GPU. Give --device=cpu, or leave it '
                             'out.')
        kind, count = ('GPU', num_gpus) if num_gpus and kind != 'CPU' else ('CPU', self._num_of_each('CPU'))
        self.devices = p.devices or [f'{kind}:{index % count}' for index in range(p.num_replicas * p.num_partitions)]

    def _num_of_each(self, kind):
        """Count the devices of a kind on the chief and on each worker, and return the lowest count."""
        tasks = [('chief', 0), *(('worker', index) for index in range(self.num_workers))]
        found = [(spec.job, spec.task) for spec in (
            tf.DeviceSpec.from_string(device.name) for device in tf.config.list_logical_devices(kind))]
        return min(map(found.count, tasks))

    @contextlib.contextmanager
    def creating(self) -> Iterator[Any]:
        """Place the variables that are created in this scope on the servers."""
        def create(next_creator, **arguments):
            name = min(self.names, key=self._num_bytes.get)
            with tf.device(name):  # not split into a `ShardedVariable`, because Keras optimizers cannot split slots
                variable = next_creator(**arguments)
            self._num_bytes[name] += variable.dtype.size * variable.shape.num_elements()
            return variable

        with tf.variable_creator_scope(create):
            yield

    def program(self, task: Any, train_params: Any, batch_spec: Any) -> Any:
        return _PROGRAMS[self.update](task, train_params, self, batch_spec)

    def silent_tasks(self) -> list:
        """Return the tasks that do not answer, such as 'worker:1'."""
        return answers.silent_tasks(self._config)

    def calls(self, function: Any) -> RemoteCalls:
        """Return a `RemoteCalls` that runs `function`, a concrete function, on the workers."""
        return RemoteCalls(self._coordinator, function, 2 * self.num_workers)


def join(params: Any, config: Any, update: Any, timeout_seconds: Any = 0.0, kind: Any = None) -> Any:
    """Connect the chief with workers and servers. Return (params with values instead of 'auto', `ParameterServers`).

    Args:
        kind: 'CPU' or 'GPU'; None takes the best kind that all workers and the chief have.
    """
    body = params.task.body
    resolution.validate(body)
    device_kinds.configure_graph_optimizer()
    numbers = body.num_partitions, body.num_replicas
    num_devices = 1 if 'auto' in numbers else math.prod(numbers)
    device_kinds.use_virtual_devices(num_devices)  # CPU devices: evaluation needs them if there are no GPUs
    answers.listening(config).close()  # else TensorFlow would not say what is wrong
    print(f'The chief waits for {config.num_workers} workers and {config.num_parameter_servers} servers.',
          file=sys.stderr, flush=True)
    servers = ParameterServers(config, update, timeout_seconds)
    params = planning.resolved(params, num_devices, kind == 'CPU')
    servers.choose_devices(params.task.body, kind)
    return params, servers


def train(params: Any, evaluation_inputs: Any, logdir: str, servers: ParameterServers, started: Any = None,
          dog: watchdog.Watchdog | None = None) -> int:
    """Train to the last step, or until a signal asks to stop. Return the exit code.

    Raises:
        LostWorkerError: a server was lost, or all workers were lost.
    """
    try:
        code = trainer.Trainer(params, evaluation_inputs, logdir, servers, started, dog).run_to_exit_code()
    except (tf.errors.OpError, errors.TrainingError) as error:  # the latter during a checkpoint
        root = error.__cause__ if isinstance(error, errors.TrainingError) else error
        if not (isinstance(root, tf.errors.CancelledError) or errors.is_lost_machine(root)):
            raise
        silent = servers.silent_tasks()
        raise errors.LostWorkerError(
            f'{", ".join(silent) if silent else "A parameter server"} was lost, and with a server its part of the '
            f'weights ({errors.cause(root)}). {waits.START_AGAIN}') from root
    gc.collect()  # removes functions from workers and servers while these still run
    return code


def _answer(values, results):
    """Fetch remote values from the queue `values`, and put each result or error into the queue `results`."""
    while True:
        value = values.get()
        try:
            results.put((_fetch(value), None))
        except Exception as error:  # `next_answer` raises it
            results.put((None, error))
        del value  # its function must be freed before servers end


def _fetch(value):
    while True:
        try:
            return value.fetch()
        except Exception as error:
            if value._get_error() is error:  # set by the coordinator, which gives the call up
                raise
        time.sleep(_RETRY_SECONDS)  # if a worker is lost before its result arrives, the coordinator repeats the call
