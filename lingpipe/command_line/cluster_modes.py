"""The work of each process in a cluster, by its job and --cluster.

                        chief            worker         ps
    pipeline            trains           serves
    parameter_server    trains           serves         serves
    multi_worker                         trains
    --tpu=slice         trains           serves
"""

import atexit
import contextlib
import math
import os
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

from lingpipe.cluster import answers, cluster_config, launchers, server
from lingpipe.training import errors, watchdog

if TYPE_CHECKING:
    from lingpipe.command_line import modes  # its import defines flags

_SECONDS_FOR_OTHERS = 1
_SECONDS_TO_END = 10


def run(command: 'modes.Command') -> int:
    """Train in a cluster, or serve its chief. Return the exit code."""
    if command.given.cluster == cluster_config.MULTI_WORKER:
        return _train_as_worker(command)
    with _ending_at_once():
        code = _run_with_chief(command)
    atexit.register(_end, code)
    return code


def _run_with_chief(command):
    given = command.given
    if given.tpu == launchers.SLICE:
        return _run_on_slice(command)
    config = _cluster_of(given)
    if not config.is_chief:
        uses_gpus = given.device != 'cpu' and config.task_type != 'ps'
        server.serve(config, _num_cpu_devices(command.params.task.body, config, given.cluster), uses_gpus,
                     is_replaceable=bool(given.replace_after_seconds))
    train = _train_with_parameter_servers
    if given.cluster == cluster_config.PIPELINE:
        train = _train_elastic_pipeline if given.replace_after_seconds else _train_pipeline
    return _lead(config, lambda reached: train(command, config, reached))


def _cluster_of(given):
    config = launchers.read(given.cluster_spec, given.task, given.cluster, given.ps)
    if not given.trusted_network:
        server.check_networks()
    return config


def _lead(config, train):
    """Train as the chief, then end the servers."""
    are_reached = threading.Event()
    try:
        code = train(are_reached.set)  # the servers still run when `train` deletes TensorFlow's objects there
    except Exception as error:
        code = errors.exit_code(error)
        if are_reached.is_set() and code != errors.EXIT_TRY_AGAIN:  # else the servers stay for a restart
            answers.tell_end(config, code)
        raise
    answers.tell_end(config, code)
    return code


def _num_cpu_devices(body, config, mode):
    """Return the number of CPU devices of a server."""
    if config.task_type == 'ps' or 'auto' in (body.num_partitions, body.num_replicas):
        return 1
    num_stages = body.num_partitions * body.num_replicas
    return math.ceil(num_stages / config.num_workers) if mode == cluster_config.PIPELINE else num_stages


def _kind(given):
    """Return --device in upper case, or None for 'auto'."""
    return None if given.device == 'auto' else given.device.upper()


def _train_pipeline(command, config, reached):
    from lingpipe.placements import pipeline_hosts
    from lingpipe.tools import trace
    given = command.given
    params, placement = pipeline_hosts.place(command.params, config, _kind(given))
    reached()
    if given.mode == 'trace':
        trace.Trace(params, given.logdir, placement.devices).run(given.steps)
        return 0
    dog = watchdog.Watchdog(given.step_timeout_seconds, config, 'worker')
    return command._replace(params=params).trainer(placement, dog).run_to_exit_code()


def _train_elastic_pipeline(command, config, reached):
    from lingpipe.placements import elastic_hosts
    given = command.given
    workers = elastic_hosts.ElasticHosts(config, given.replace_after_seconds, given.logdir)
    params = workers.connect(command.params, _kind(given))
    reached()

    def run(placed, placement, roster, since):
        dog = watchdog.Watchdog(given.step_timeout_seconds, roster.config, 'worker', roster.is_worker_back)
        return command._replace(params=placed, started=since).trainer(placement, dog).run_to_exit_code()

    return workers.train(params, command.started, run)


def _run_on_slice(command):
    """Train on a TPU slice as the chief, or serve as a worker."""
    from lingpipe.placements import tpu_system
    tpu_system.validate(command.params.task.body, command.given.mode)  # on every host, so that none waits in vain
    config = launchers.read_slice(command.given.task)
    if config.task_type == 'worker':
        server.serve(config, use_gpus=False, use_all_cores=True)
    with _server_of_host(config):
        return _lead(config, lambda reached: _train_on_slice(command, config, reached))


@contextlib.contextmanager
def _server_of_host(config):
    """Run a server process on the chief's own host until the scope ends."""
    for task_type in ('chief', 'worker'):
        answers.listening(config._replace(task_type=task_type)).close()
    process = launchers.start_server([sys.executable, *sys.orig_argv[1:]])
    try:
        yield
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_SECONDS_TO_END)
    finally:
        process.kill()
        process.wait()


def _train_on_slice(command, config, reached):
    from lingpipe.placements import pipeline_hosts, tpu_system
    pipeline_hosts.wait_for_all(config)
    reached()
    params, placement = tpu_system.start_and_place(
        command.params, command.given.mode, launchers.slice_target(config), config.address)
    dog = watchdog.Watchdog(command.given.step_timeout_seconds, config, 'worker')
    return command._replace(params=params).trainer(placement, dog).run_to_exit_code()


def _train_as_worker(command):
    from lingpipe.placements import multi_worker_training
    given = command.given
    config = _cluster_of(given)
    dog = watchdog.Watchdog(given.step_timeout_seconds, config)
    with _ending_at_once(_SECONDS_FOR_OTHERS), multi_worker_training.losses_in_words():
        params, workers = multi_worker_training.join(command.params, config, _kind(given), dog)
        return multi_worker_training.train(params, command.datasets, given.logdir, workers, command.started)


@contextlib.contextmanager
def _ending_at_once(seconds=0):
    """End the program by force, `seconds` after an error."""
    try:
        yield
    except (Exception, KeyboardInterrupt) as error:
        atexit.register(_end, errors.exit_code(error), seconds)
        raise


def _end(code, seconds=0):
    time.sleep(seconds)  # so that workers with the same error can report it too
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # at exit, TensorFlow would wait for ended processes


def _train_with_parameter_servers(command, config, reached):
    from lingpipe.placements import parameter_servers
    given = command.given
    params, servers = parameter_servers.join(
        command.params, config, given.update, given.step_timeout_seconds, _kind(given))
    dog = watchdog.Watchdog(given.step_timeout_seconds, config, 'ps')
    reached()
    return parameter_servers.train(params, command.datasets, given.logdir, servers, command.started, dog)
