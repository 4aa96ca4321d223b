"""One pipeline whose stages are on the machines of a cluster."""

import copy
import time
from typing import Any

import tensorflow as tf

from lingpipe.cluster import cluster_config, ports, waits, watchdog
from lingpipe.devices import device_kinds
from lingpipe.planner import resolution
from lingpipe.private_api import eager_context
from lingpipe.training import placement, planning

PROCESSES = '/job:worker/'
SECONDS_BETWEEN_TRIES = 0.2
_SECONDS_TO_RECONNECT = 10  # some hundred milliseconds are usual


def connect(config: cluster_config.ClusterConfig, timeout_seconds: float = watchdog.SECONDS_TO_CONNECT) -> None:
    """Makes the devices of all workers available to this program, the chief.

    Workers are clients of each other, and of the chief, from which they fetch the input::

        chief     builds the step, reads the input, writes checkpoints and curves
          │
          ├──> worker 0   server: stage 0 ──┐
          │                                 v  boundary tensors go from worker to worker
          └──> worker 1   server: stage 1

    Args:
        config: `ClusterConfig`.
        timeout_seconds: how long workers may take to start, and the port of the chief to be free.

    Raises:
        ConnectionError: workers cannot be reached; the message names them.
        RuntimeError: the port of this chief stays taken.
    """
    ports.check(config, timeout_seconds)
    # The chief has no stages, but TensorFlow would take the memory of its GPUs.
    tf.config.set_visible_devices([], 'GPU')
    wait_for_all(config, timeout_seconds)
    try:
        with watchdog.connecting(config, timeout_seconds):
            tf.config.experimental_connect_to_cluster(_cluster_of(config), job_name='chief', task_index=0)
            tf.config.list_logical_devices()  # connects
    except tf.errors.OpError as error:
        raise ConnectionError(
            f'The workers {", ".join(map(config.address_of, _workers(config)))} answer, but no cluster came of it '
            f'({str(error).splitlines()[0]}). Check that each runs this version of TensorFlow and LingPipe with the '
            'same addresses, and start them again.') from error


def reconnect(config: Any) -> None:
    """Connects the chief again, after the list of workers has changed.

    TensorFlow's public function would start a second server at the chief's port. What is on the devices of workers that
    remain can still be read. TensorFlow first waits for operations that have begun, and a copy from a lost worker
    may never end; it also waits where another worker is lost meanwhile. The process then ends after 10 seconds, to be
    started again.

    Args:
        config: `ClusterConfig` of the chief; other workers than before may be left out. The others have just answered.

    Raises:
        OpError: TensorFlow reports that a worker was lost meanwhile.
    """
    definition = copy.deepcopy(eager_context.get_server_def())
    definition.cluster.CopyFrom(_cluster_of(config).as_cluster_def())
    first = config.tasks('worker')[0][1]
    definition.default_session_config.experimental.collective_group_leader = f'/job:worker/replica:0/task:{first}'
    with watchdog.connecting(config, _SECONDS_TO_RECONNECT):
        eager_context.update_server_def(definition)


def _cluster_of(config):
    tasks = {'worker': {index: config.jobs['worker'][index] for _, index in config.tasks('worker')}}
    return tf.train.ClusterSpec({'chief': config.jobs['chief'], **tasks})


def _workers(config):
    return [f'{job}:{index}' for job, index in config.tasks('worker')]


def count() -> Any:
    """Returns the number of the workers' devices: of their GPUs, or of CPUs if there are none."""
    kinds = [[device for device in tf.config.list_logical_devices(kind) if device.name.startswith(PROCESSES)]
             for kind in ('GPU', 'CPU')]
    return len(kinds[0] or kinds[1])


def wait_for_all(config: cluster_config.ClusterConfig, timeout_seconds: float = watchdog.SECONDS_TO_CONNECT) -> None:
    """Waits until all workers answer. TensorFlow itself would wait without end, and not name the missing worker.

    Args:
        config: `ClusterConfig` of the chief.
        timeout_seconds: how long workers may take to start.

    Raises:
        ConnectionError: workers cannot be reached; the message names them.
    """
    end, missing = time.monotonic() + timeout_seconds, []
    with waits.Wait('the workers', 0, details=lambda: f'No answer came from {in_words(config, missing)}.'):
        while missing := _closed(config) or watchdog.find_silent_tasks(config):
            if time.monotonic() > end:
                raise watchdog.missing_workers(in_words(config, missing), config.num_workers, timeout_seconds)
            time.sleep(SECONDS_BETWEEN_TRIES)


def silent_workers(config: cluster_config.ClusterConfig) -> list[str]:
    """Returns the workers that do not answer: they refuse connections, or do not compute.

    Args:
        config: `ClusterConfig` of the chief.
    """
    closed = _closed(config)
    return closed + watchdog.find_silent_tasks(config._replace(left_out=config.left_out.union(closed)))


def _closed(config):
    return [name for name in _workers(config) if not ports.is_open(config.address_of(name))]


def in_words(config: cluster_config.ClusterConfig, names: list[str]) -> str:
    """Returns the names of processes with their addresses.

    Args:
        config: `ClusterConfig`.
        names: names such as 'worker:1'.
    """
    return ', '.join(f'{name} ({config.address_of(name)})' for name in names)


def place(params: Any, config: Any, kind: Any = None) -> Any:
    """Connects the chief with all workers, and places the partitions of an experiment on their devices.

    Args:
        params: the experiment's Params.
        config: `ClusterConfig` of the chief.
        kind: 'CPU' or 'GPU'; None takes the best kind that the workers have.

    Returns:
        Params with numbers in place of 'auto', and the `Placement`.

    Raises:
        ValueError: params cannot work.
        ConnectionError: workers cannot be reached.
    """
    resolution.validate(params.task.body)
    device_kinds.configure_graph_optimizer()
    device_kinds.use_virtual_devices(1)
    connect(config)
    params = planning.resolved(params, count(), on_cpu=True)
    body = params.task.body
    return params, placement.Placement(body.devices or device_kinds.stage_devices(
        body.num_replicas * body.num_partitions, kind, PROCESSES))
