"""What a process of a cluster does, by --cluster and by its task.

                        chief            worker         ps
    pipeline            trains           serves
    parameter_server    trains           serves         serves
    multi_worker                         trains
"""

import atexit
import contextlib
import math
import os
import sys
import threading
import time
from collections.abc import Mapping

from absl import flags

from lingpipe import hyperparams
from lingpipe.cluster import child_process, cluster_config, messages, server, watchdog
from lingpipe.training import errors

_SECONDS_FOR_OTHERS = 1


def run(params: hyperparams.Params, datasets: Mapping[str, hyperparams.Params], given: flags.FlagValues,
        started: float) -> None:
    """Trains in a cluster, or serves one that trains.

    Args:
        params: the experiment's Params.
        datasets: {name: Params} of the evaluation inputs.
        given: the parsed `flags.FLAGS`.
        started: time at which the program started, as `time.time()` gives it.
    """
    config = cluster_config.read(given.cluster_spec, task=given.task, mode=given.cluster)
    server.warn_about_addresses(config)
    if given.cluster == cluster_config.MULTI_WORKER:
        _train_as_worker(params, datasets, given, config, started)
    elif not config.is_chief:
        uses_gpus = given.device != 'cpu' and config.task_type != 'ps'
        server.serve(config, _num_cpu_devices(params.task.body, config, given.cluster), uses_gpus)
    else:
        train = _train_pipeline if given.cluster == cluster_config.PIPELINE else _train_with_parameter_servers
        with _ending_servers(config) as reached:
            train(params, datasets, given, config, started, reached)


@contextlib.contextmanager
def _ending_servers(config):
    """Ends the servers that training has reached when it ends, in good order or not, unless it is to be restarted.

    The objects of training are gone when this scope is left: TensorFlow removes from servers what they know of these,
    and cannot once they have ended.

    Yields:
        Function to call when the servers are reached.
    """
    are_reached = threading.Event()
    try:
        yield are_reached.set
    except Exception as error:
        if are_reached.is_set() and errors.exit_code(error) != errors.EXIT_TRY_AGAIN:
            messages.send_to_all(config, messages.ENDED)
        raise
    messages.send_to_all(config, messages.ENDED)


def _num_cpu_devices(body, config, mode):
    """Returns into how many devices a server splits its CPU: one for each stage that is placed on it."""
    if config.task_type == 'ps' or 'auto' in (body.num_partitions, body.num_replicas):
        return 1
    num_stages = body.num_partitions * body.num_replicas
    return math.ceil(num_stages / config.num_workers) if mode == cluster_config.PIPELINE else num_stages


def _kind(given):
    """Returns the kind of devices that --device names, None where it leaves that open."""
    return None if given.device == 'auto' else given.device.upper()


def _train_pipeline(params, datasets, given, config, started, reached):
    from lingpipe.placements import hosts
    from lingpipe.tools.trace import trace
    from lingpipe.training import trainer
    params, placement = hosts.place(params, config, _kind(given))
    reached()
    if given.mode == 'trace':
        trace.Trace(params, given.logdir, placement.devices).run(given.steps)
    else:
        leader = watchdog.Chief(config, 'worker', given.step_timeout_seconds)
        trainer.Trainer(params, datasets, given.logdir, placement, started, leader).run()


def _train_as_worker(params, datasets, given, config, started):
    from lingpipe.placements import worker_training
    dog = watchdog.Watchdog(given.step_timeout_seconds, config)
    with _ending_though_others_wait(), worker_training.losses_in_words(), dog:
        params, workers = worker_training.join(params, config, _kind(given), dog)
        child_process.beat_for_parent()
        worker_training.train(params, datasets, given.logdir, workers, started)


@contextlib.contextmanager
def _ending_though_others_wait():
    """Ends the program after an error of this worker alone, where TensorFlow would wait for others that wait for it."""
    try:
        yield
    except (Exception, KeyboardInterrupt) as error:
        atexit.register(_end, errors.exit_code(error))
        raise


def _end(code):
    time.sleep(_SECONDS_FOR_OTHERS)  # workers that end by the same error report it first
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _train_with_parameter_servers(params, datasets, given, config, started, reached):
    from lingpipe.placements import parameter_servers
    params, servers = parameter_servers.join(
        params, config, given.update, given.max_staleness, given.step_timeout_seconds, _kind(given))
    leader = watchdog.Chief(config, 'ps', given.step_timeout_seconds)
    reached()
    parameter_servers.train(params, datasets, given.logdir, servers, started, leader)
