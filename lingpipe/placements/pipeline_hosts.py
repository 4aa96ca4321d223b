"""Setup of the devices of one pipeline, on this machine or on a cluster."""

import atexit
import copy
import functools
import math
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from lingpipe.cluster import answers, cluster_config, launchers, server, waits
from lingpipe.devices import device_kinds
from lingpipe.pipeline import validation
from lingpipe.planner import resolution
from lingpipe.private_api import eager_context
from lingpipe.training import errors, experiment, planning

_SECONDS_TO_RECONNECT = 60  # some hundred milliseconds are usual
_SECONDS_BETWEEN_QUESTIONS = 30.
_AGAIN = 'Start the script again on all machines: with keras.callbacks.BackupAndRestore it resumes.'


def set_up_here(body_params: Any, kind: Any) -> tuple[int, bool]:
    """Set up the devices of this machine. Call this before TensorFlow does anything else.

    Args:
        kind: 'CPU' or 'GPU'; None takes the best kind that this machine has.

    Returns:
        The number of devices, and whether these are virtual CPUs.
    """
    resolution.validate(body_params)
    device_kinds.configure_graph_optimizer()
    on_cpu = kind == 'CPU' or kind is None and not device_kinds.has('GPU', 'TPU')
    numbers = body_params.num_partitions, body_params.num_replicas
    num_devices = planning.num_local_devices(on_cpu) if 'auto' in numbers else math.prod(numbers)
    if on_cpu:
        device_kinds.use_virtual_devices(num_devices)
    return num_devices, on_cpu


def place_here(params: Any, kind: Any = None) -> tuple[Any, experiment.Placement]:
    """Return params with numbers instead of 'auto', and a `Placement` on this machine; see `set_up_here`."""
    return _placed(params, *set_up_here(params.task.body, kind), kind)


def _placed(params, num_devices, on_cpu, kind):
    params = planning.resolved(params, num_devices, on_cpu)
    body = params.task.body
    if body.devices is not None:
        validation.require_device_names(body.devices)
    return params, experiment.Placement(
        body.devices or device_kinds.stage_devices(body.num_replicas * body.num_partitions, kind))


def connect_hosts(config: cluster_config.ClusterConfig) -> None:
    """Make the devices of all workers available to this program, the chief. Stages then use only these devices.

    The workers connect to each other and to the chief::

        chief     builds the step, reads the input, writes checkpoints and curves
          │
          ├──> worker 0   server: stage 0 ──┐
          │                                 v  boundary tensors go from worker to worker
          └──> worker 1   server: stage 1

    Raises:
        ConnectionError: workers cannot be reached.
        RuntimeError: the chief cannot listen at its port.
    """
    answers.listening(config).close()  # else TensorFlow would not say what is wrong
    # The chief has no stages, but TensorFlow would take the memory of its GPUs.
    tf.config.set_visible_devices([], 'GPU')
    wait_for_all(config)
    try:
        with answers.connecting(config):
            tf.config.experimental_connect_to_cluster(_cluster_of(config), job_name='chief', task_index=0)
            tf.config.list_logical_devices()  # connects
    except tf.errors.OpError as error:
        raise ConnectionError(
            f'The workers {config.in_words(config.tasks("worker"))} answer, but no cluster came of it '
            f'({str(error).splitlines()[0]}). Check that each runs this version of TensorFlow and LingPipe with the '
            'same addresses, and start them again.') from error
    device_kinds.use_processes('/job:worker/')


def wait_for_all(config: cluster_config.ClusterConfig) -> None:
    """Wait until all workers answer. Raise ConnectionError if a worker does not answer in time."""
    answers.await_workers(config, functools.partial(answers.silent_tasks, config))


def reconnect(config: cluster_config.ClusterConfig) -> None:
    """Connect the chief again, after the list of workers has changed.

    The remaining workers keep the data on their devices. If this takes over 60 seconds, the process ends with code 75.
    """
    definition = copy.deepcopy(eager_context.get_server_def())
    definition.cluster.CopyFrom(_cluster_of(config).as_cluster_def())
    leader = tf.DeviceSpec.from_string(cluster_config.device_of(config.tasks('worker')[0])).replace(replica=0)
    definition.default_session_config.experimental.collective_group_leader = leader.to_string()
    # TensorFlow first waits for running operations, which may never end if they were streamed to a lost worker. It also
    # waits if another worker is lost during the call.
    with answers.connecting(config, _SECONDS_TO_RECONNECT):
        eager_context.update_server_def(definition)  # the public call would start a second server at the chief's port


def _cluster_of(config):
    workers = {int(name.partition(':')[2]): config.address_of(name) for name in config.tasks('worker')}
    return tf.train.ClusterSpec({'chief': config.jobs['chief'], 'worker': workers})


def place(params: Any, config: Any, kind: Any = None) -> tuple[Any, experiment.Placement]:
    """Connect the chief with all workers. Return params with numbers instead of 'auto', and a `Placement`.

    See `set_up_here` for `kind`, and `connect_hosts` for errors.
    """
    resolution.validate(params.task.body)
    device_kinds.configure_graph_optimizer()
    device_kinds.use_virtual_devices(1)
    connect_hosts(config)
    return _placed(params, device_kinds.num_devices(), True, kind)


def connect(cluster_spec: str = launchers.AUTO, *, trusted_network: bool = False, task: str | None = None,
            devices_per_worker: int = 1, worker_timeout_seconds: float = 600.) -> list[str]:
    """Let this script use the devices of all machines of a cluster. Call this function before anything else.

    Every process runs the same script. In the chief, this function returns, and the script continues. Pipelines that
    name no devices then use the workers' devices. In a worker, this function never returns. It serves until the chief's
    script ends, and then ends the process::

        import lingpipe
        lingpipe.connect(trusted_network=True)           # srun -n3 python train.py
        pipe = lingpipe.GPipeLayer.from_keras(model, num_partitions=2, num_micro_batches=4)

    SIGTERM to any process ends the chief's script by `SystemExit`. The workers then end too. If a worker is lost, the
    step fails with an error that names the worker. If a worker hangs, the chief's process ends. The exit code is 75 in
    all these cases. A script with `keras.callbacks.BackupAndRestore` resumes when the script is started again.

    Args:
        cluster_spec: path of a file like TF_CONFIG, or 'auto'. 'auto' reads TF_CONFIG, else variables of Slurm or of a
            TPU slice.
        trusted_network: whether only trusted machines reach this machine. TensorFlow's server listens on every network.
            Whoever reaches the server can run any code on this machine. If False, this machine must have no network.
        task: name of this process, such as 'worker:1'; None: the name in the cluster spec.
        devices_per_worker: number of virtual devices into which a worker without GPUs splits its CPU.
        worker_timeout_seconds: how long a worker may be silent before this process ends; 0: no limit.

    Returns:
        List of the names of the workers' devices.

    Raises:
        ValueError: the cluster spec is missing or wrong, or `trusted_network` is False on a machine with a network.
        ConnectionError: workers cannot be reached.
        RuntimeError: this process cannot listen at its port.
    """
    config = launchers.read(cluster_spec, task, cluster_config.PIPELINE)
    if not trusted_network:
        server.check_networks()
    if not config.is_chief:
        server.serve(config, devices_per_worker)
    device_kinds.use_virtual_devices(1)
    connect_hosts(config)
    _end_workers_at_exit(config, _watch_workers(config, worker_timeout_seconds))
    return device_kinds.stage_devices(device_kinds.num_devices())


def _watch_workers(config: cluster_config.ClusterConfig, seconds: float) -> Callable[[], Any]:
    """End this process if a worker is silent for too long."""
    if not seconds:
        return lambda: None
    silent: list[str] = []
    has_ended = threading.Event()

    def ask() -> None:
        while not has_ended.wait(min(_SECONDS_BETWEEN_QUESTIONS, seconds / 4)):
            silent[:] = answers.silent_tasks(config)

    def end(sentence: str) -> None:
        print(f'Error: {sentence}', file=sys.stderr, flush=True)
        answers.tell_end(config, waits.TRY_AGAIN)
        os._exit(waits.TRY_AGAIN)

    asking = threading.Thread(target=ask, name='asking workers', daemon=True)
    asking.start()
    watch = waits.Wait('all workers to answer', seconds, f'worker_timeout_seconds={seconds:g}',
                       lambda: f'No answer from {config.in_words(silent)}.', lambda: tuple(silent) or None,
                       on_timeout=end)
    watch.__enter__()

    def end_watch() -> None:
        has_ended.set()
        asking.join()  # TensorFlow must not end while it is used
        watch.__exit__()

    return end_watch


def _end_workers_at_exit(config: cluster_config.ClusterConfig, end_watch: Callable[[], Any]) -> None:
    """Tell workers to end when this script ends."""
    codes = [0]  # 1 after an error, 75 if the script is to be started again
    excepthook = sys.excepthook

    def failed(kind: type[BaseException], error: BaseException, traceback: Any) -> None:
        is_lost = errors.is_lost_machine(error)
        codes[0] = waits.TRY_AGAIN if is_lost else 1
        excepthook(kind, error, traceback)
        if is_lost:
            print(f'{errors.machine(error)} was lost. {_AGAIN}', file=sys.stderr)

    def asked_to_stop(*unused: Any) -> None:
        codes[0] = waits.TRY_AGAIN
        print(f'Stopped by SIGTERM. {_AGAIN}', file=sys.stderr)
        sys.exit(waits.TRY_AGAIN)

    def end() -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a launcher may stop all processes after the first ends
        end_watch()
        answers.tell_end(config, codes[0])
        if codes[0] == waits.TRY_AGAIN:  # Python would end with 1 after an error
            sys.stdout.flush()
            os._exit(waits.TRY_AGAIN)

    sys.excepthook = failed
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, asked_to_stop)
        answers.listen(config, 'worker', lambda task: os.kill(os.getpid(), signal.SIGTERM))
    atexit.register(end)
