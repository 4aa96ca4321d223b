"""`lingpipe.connect`: a user's own script, with Keras's `fit`, over the machines of a cluster.

    chief       connect(...) ──> from_keras, fit, save ...    on the devices of all workers ──> the script ends
    worker 0    connect(...): serves its devices ·································································> ends
    worker 1    connect(...): serves its devices ·································································> ends
"""

import atexit
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

from lingpipe.cluster import answers, cluster_config, launchers, server, waits
from lingpipe.devices import device_kinds
from lingpipe.placements import pipeline_hosts
from lingpipe.training import errors

_SECONDS_BETWEEN_QUESTIONS = 30.
_AGAIN = 'Start the script again on all machines: with keras.callbacks.BackupAndRestore it resumes.'


def connect(cluster_spec: str = launchers.AUTO, *, trusted_network: bool = False, task: str | None = None,
            devices_per_worker: int = 1, worker_timeout_seconds: float = 600.) -> list[str]:
    """Let this script use the devices of all machines of a cluster; call it before anything else.

    Every process runs the same script. The chief continues from here, and pipelines that name no devices use the
    workers' devices. A worker serves, and ends with the chief's script, so that only the chief returns from here::

        import lingpipe
        lingpipe.connect(trusted_network=True)           # srun -n3 python train.py
        pipe = lingpipe.GPipeLayer.from_keras(model, num_partitions=2, num_micro_batches=4)

    SIGTERM, also to a worker, ends the chief's script by `SystemExit`, so that the workers end too. If a worker is
    lost, the step fails with an error that names it. In both cases, and if a worker hangs, the exit code is 75. A
    script with `keras.callbacks.BackupAndRestore` resumes when it is started again.

    Args:
        cluster_spec: 'auto': TF_CONFIG, else the variables of Slurm or a TPU slice; or the path of a file like it.
        trusted_network: whether only trusted machines reach this one. TensorFlow's server listens on every network, and
            whoever reaches it can run any code there. So if False, it starts only on a machine without a network.
        task: name of this process, such as 'worker:1'; None: that of the cluster spec.
        devices_per_worker: into how many devices a worker without GPUs splits its CPU.
        worker_timeout_seconds: how long a worker may give no answer before this process ends; 0: no limit.

    Returns:
        List of the names of the workers' devices.

    Raises:
        ValueError: the cluster is missing or wrong, or can be reached from outside.
        ConnectionError: workers cannot be reached.
        RuntimeError: the port of this process stays taken.
    """
    config = launchers.read(cluster_spec, task, cluster_config.PIPELINE)
    if not trusted_network:
        server.check_networks()
    if not config.is_chief:
        server.serve(config, devices_per_worker)
    device_kinds.use_virtual_devices(1)
    pipeline_hosts.connect_hosts(config)
    _end_workers_at_exit(config, _watch_workers(config, worker_timeout_seconds))
    return device_kinds.stage_devices(device_kinds.num_devices())


def _watch_workers(config: cluster_config.ClusterConfig, seconds: float) -> Callable[[], Any]:
    """End this process after a worker has not answered for some seconds; return a function that ends the watch."""
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
    """Tell the workers to end when this script does: with exit code 0, 1 after an error, or 75 to be started again."""
    codes = [0]
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
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # whoever started the processes may stop all after the first
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
