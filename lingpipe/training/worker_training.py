"""Training with all workers of a cluster: who does what, and what an error means."""

import contextlib
import math
import sys

import tensorflow as tf

from lingpipe.cluster import server
from lingpipe.devices import local_devices
from lingpipe.placements import workers
from lingpipe.planner import resolution
from lingpipe.training import errors, follower, planning, trainer

_OF_OTHERS = (tf.errors.UnavailableError, tf.errors.CancelledError, tf.errors.AbortedError, tf.errors.DeadlineExceededError,
              tf.errors.AlreadyExistsError, tf.errors.InternalError)


def join(params, config, kind=None, dog=None):
    """Joins the other workers, and chooses the devices of this one.

    Args:
        params: the experiment's Params.
        config: `ClusterConfig`.
        kind: 'CPU' or 'GPU'; None takes the best kind that this machine has.
        dog: `watchdog.Watchdog`, or None.

    Returns:
        Params with numbers in the place of 'auto', and the `Workers`.

    Raises:
        ValueError: params cannot work.
        RuntimeError: the port of this worker is taken.
    """
    body = params.task.body
    resolution.validate(body)
    _refuse_measured_times(body)
    local_devices.configure_graph_optimizer()
    on_cpu = kind == 'CPU' or kind is None and not local_devices.has_accelerators()
    numbers = body.num_partitions, body.num_replicas
    num_devices = planning.num_local_devices(on_cpu) if 'auto' in numbers else math.prod(numbers)
    if on_cpu:
        local_devices.use_virtual_devices(num_devices)
    server.check_port(config)
    print(f'{config.task} at {config.address} waits for all {config.num_workers} workers.', file=sys.stderr, flush=True)
    joined = workers.Workers(config, dog)
    params = planning.resolved(params, num_devices, on_cpu)
    body = params.task.body
    joined.choose_devices(body.num_replicas * body.num_partitions, kind, body.devices)
    return params, joined


def train(params, evaluation_inputs, logdir, joined, started=None):
    """Trains up to the last step, or until a signal asks any of the workers to stop.

    Args:
        params: as `trainer.Trainer` takes them, the same on all workers.
        evaluation_inputs: likewise.
        logdir: folder of the run, which only the chief reads and writes.
        joined: the `Workers`, with devices.
        started: `time.time()` at the start of the program.

    Raises:
        ValueError: params cannot work, or differ between workers.
        TrainingError: as `trainer.Trainer`.
    """
    kinds = [tf.DeviceSpec.from_string(name).device_type for name in joined.devices]
    joined.check_same(f'{params.ToText()}{kinds}')
    if joined.is_chief:
        trainer.Trainer(params, evaluation_inputs, logdir, joined, started).run()
    else:
        follower.Follower(params, joined).run()
    joined.leave()


@contextlib.contextmanager
def losses_in_words():
    """Says what errors mean inside this scope that come of another worker's end, as a `LostWorkerError`."""
    try:
        yield
    except _OF_OTHERS as error:
        raise errors.LostWorkerError(
            f'Another worker was lost, or a device of this one failed ({errors.cause(error)}); lines above that begin with E or W '
            'say which. All workers stop. Start the same command on all of them again, or give them --max_restarts: training goes '
            'on from its newest checkpoint.') from error


def _refuse_measured_times(body_params):
    if body_params.partition_by == 'time':
        raise ValueError(
            "task.body.partition_by='time' measures layers on each worker, which may then cut the model differently. Set it to "
            "'flops', or to the list of end indices that --mode=inspect_model shows on one machine.")
