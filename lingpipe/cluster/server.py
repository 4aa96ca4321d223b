"""The server of a process in a cluster, and who can reach it."""

import contextlib
import os
import queue
import signal
import socket
import sys
import threading
import time
from typing import NoReturn

import tensorflow as tf

from lingpipe.cluster import answers, cluster_config, waits

_SIGNAL = -1  # unlike any exit code that arrives from the chief
_SECONDS_TO_NOTICE = .2
_SECONDS_BETWEEN_CATCHES = 1
_SECONDS_TO_CLOSE = 1  # for the chief to close its session, which it cannot do once the server has ended
_SECONDS_TO_LEAVE = 25  # Kubernetes and Slurm kill a process 30 s after they have asked it to stop


def serve(config: cluster_config.ClusterConfig, num_cpu_devices: int = 1, use_gpus: bool = True,
          use_all_cores: bool = False, is_replaceable: bool = False) -> NoReturn:
    """Lend the devices of this process to the cluster until training ends, then exit.

    At a signal such as SIGTERM, this process asks the chief to save a checkpoint and end training, unless other workers
    can continue. The process exits within about 25 s. The exit code comes from the chief, or is `waits.TRY_AGAIN`.

    Args:
        num_cpu_devices: number of devices into which TensorFlow splits the CPU.
        use_all_cores: whether an operation may use all cores. Otherwise, an operation uses one thread.
        is_replaceable: whether training may continue with the other workers after a signal.

    Raises:
        RuntimeError: the server cannot listen at its port.
    """
    answers.listening(config).close()  # else TensorFlow would not say what is wrong
    events: queue.SimpleQueue[int] = queue.SimpleQueue()  # exit codes from the chief, and `_SIGNAL`
    _catch_signals(events)
    server = _start(config, num_cpu_devices, use_gpus, use_all_cores)
    devices = f'{num_cpu_devices} CPU device{"s" * (num_cpu_devices > 1)}'
    print(f'{config.task} serves at {config.address} with {devices}.', flush=True)
    threading.Thread(target=_await_end, args=(config, server.target, events), name='end', daemon=True).start()
    while (event := _next(events, _SECONDS_BETWEEN_CATCHES)) is None:
        _catch_signals(events)  # TensorFlow replaces the handler of SIGTERM when a coordinator of TPUs connects
    if event == _SIGNAL:
        event = _after_signal(config, server.target, is_replaceable, events)
    if event in (None, _SIGNAL):
        event = waits.TRY_AGAIN
    else:
        time.sleep(_SECONDS_TO_CLOSE)
    print(f'{config.task} has ended.', flush=True)
    sys.stderr.flush()
    os._exit(event)  # TensorFlow cannot stop a server


def _after_signal(config, target, is_replaceable, events):
    """Ask the chief to end training, unless other workers can continue, and return the next event."""
    others = [config.address_of(name) for name in config.tasks('worker') if name != config.task]
    if is_replaceable and any(map(answers.is_open, others)):
        print(f'{config.task} was asked to stop: it leaves in {_SECONDS_TO_LEAVE} s, or when training ends. Training '
              'continues without it (--replace_after_seconds).', flush=True)
        return _next(events, _SECONDS_TO_LEAVE)
    if not answers.ask_to_stop(config, target):
        return _next(events, _SECONDS_TO_NOTICE)  # training may have ended just now
    print(f'{config.task} was asked to stop, and has told the chief.', flush=True)
    return _next(events, _SECONDS_TO_LEAVE)


def _catch_signals(events):
    for number in waits.STOP_SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda *unused: events.put(_SIGNAL))


def _next(events, seconds):
    """Return the next event, or None after `seconds`."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with contextlib.suppress(queue.Empty):
            return events.get(timeout=_SECONDS_TO_NOTICE)  # a long wait could delay a signal
    return None


def _start(config, num_cpu_devices, use_gpus, use_all_cores):
    devices = {'CPU': num_cpu_devices} | ({} if use_gpus else {'GPU': 0})
    threads = {} if use_all_cores else {
        'intra_op_parallelism_threads': 1, 'inter_op_parallelism_threads': max(2, num_cpu_devices)}
    settings = tf.compat.v1.ConfigProto(device_count=devices, **threads)
    try:
        return tf.distribute.Server(
            tf.train.ClusterSpec(config.jobs), job_name=config.task_type, task_index=config.task_index, config=settings)
    except tf.errors.UnknownError as error:
        raise RuntimeError(answers.taken_port(config, str(error).splitlines()[0])) from error


def _await_end(config, target, events):
    with contextlib.suppress(tf.errors.OpError):
        events.put(answers.wait_for_end(config, target))


def check_networks() -> None:
    """Raise ValueError if this process has a network interface other than loopback, by which others could reach it."""
    others = [name for _, name in socket.if_nameindex() if name not in ('lo', 'lo0')]
    if others:
        raise ValueError(
            f'This machine is in networks ({", ".join(others[:3])}{", ..." * (len(others) > 3)}), and the servers of '
            'TensorFlow listen on all of them, without passwords and encryption: anyone who can reach a port can run '
            'any code there as you. Let only the machines of the cluster reach these ports (NetworkPolicy, firewall, '
            'WireGuard), and give --trusted_network, or trusted_network=True to lingpipe.connect. See '
            'docs/many_machines.md.')
