"""Training with parameter servers: joining the cluster, and what an error means."""

import contextlib
import gc
import math
import sys

import tensorflow as tf

from lingpipe.cluster import server
from lingpipe.devices import local_devices
from lingpipe.placements import parameter_servers
from lingpipe.planner import resolution
from lingpipe.training import errors, planning, trainer

_OF_OTHERS = (tf.errors.UnavailableError, tf.errors.CancelledError, tf.errors.AbortedError, tf.errors.DeadlineExceededError)


def join(params, config, update, max_staleness=None, timeout_seconds=0.0, kind=None):
    """Connects the chief with all workers and servers, and chooses the devices of stages.

    Args:
        params: the experiment's Params.
        config: `ClusterConfig`.
        update: as `ParameterServers` takes it.
        max_staleness: likewise.
        timeout_seconds: likewise.
        kind: 'CPU' or 'GPU'; None takes the best kind that all workers and the chief have.

    Returns:
        Params with numbers in the place of 'auto', and the `ParameterServers`.

    Raises:
        ValueError: params cannot work.
        RuntimeError: the port of this chief is taken.
    """
    body = params.task.body
    resolution.validate(body)
    local_devices.configure_graph_optimizer()
    numbers = body.num_partitions, body.num_replicas
    num_devices = 1 if 'auto' in numbers else math.prod(numbers)
    local_devices.use_virtual_devices(num_devices)  # which GPUs are none of, but evaluation without one needs them
    server.check_port(config)
    print(f'The chief waits for {config.num_workers} workers and {config.num_parameter_servers} servers.', file=sys.stderr, flush=True)
    servers = parameter_servers.ParameterServers(config, update, max_staleness, timeout_seconds)
    params = planning.resolved(params, num_devices, kind == 'CPU')
    servers.choose_devices(params.task.body, kind)
    return params, servers


def train(params, evaluation_inputs, logdir, servers, started=None, chief=None):
    """Trains up to the last step, or until a signal asks to stop.

    Args:
        params: as `trainer.Trainer` takes them.
        evaluation_inputs: likewise.
        logdir: folder of the run, on the chief's disk.
        servers: the `ParameterServers`, with devices.
        started: `time.time()` at the start of the program.
        chief: `watchdog.Chief` of the cluster, or None.

    Raises:
        LostWorkerError: a server was lost, or all workers.
        TrainingError, ValueError: as `trainer.Trainer`.
    """
    with losses_in_words(servers):
        trainer.Trainer(params, evaluation_inputs, logdir, servers, started, chief).run()
    gc.collect()  # what workers and servers know of functions is removed while they are still there


@contextlib.contextmanager
def losses_in_words(servers):
    """Says what an error means that comes of the end of another process, be it in the middle of a checkpoint."""
    try:
        yield
    except (*_OF_OTHERS, errors.TrainingError) as error:
        root = error.__cause__ if isinstance(error, errors.TrainingError) else error
        if not isinstance(root, _OF_OTHERS):
            raise
        silent = servers.silent_tasks()
        raise errors.LostWorkerError(
            f'{", ".join(silent) if silent else "A parameter server"} was lost, and with a server its part of the weights '
            f'({errors.cause(root)}). Start what has died again and run the same command, or give all --max_restarts: training goes '
            'on from its newest checkpoint.') from root
