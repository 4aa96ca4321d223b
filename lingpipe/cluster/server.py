"""The server of a process in a cluster, and who can reach it."""

import contextlib
import ipaddress
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Iterable
from typing import NoReturn

import tensorflow as tf
from absl import logging

from lingpipe.cluster import child_process, cluster_config, messages, ports, private_network

_ENDED, _SIGNAL, _WORN = range(3)
_SECONDS_TO_NOTICE = .2
_SECONDS_BETWEEN_CATCHES = 1
_SECONDS_BETWEEN_LOOKS = 2
# TensorFlow keeps threads and some MiB of each chief that was lost, of its variables too for ten minutes.
_MOST_LOST_CHIEFS = 3
_SECONDS_TO_CLOSE = 1  # for the chief to close its session, which it cannot do once the server has ended
SECONDS_TO_LEAVE = 25  # Kubernetes and Google Cloud kill a process 30 s after they have asked it to stop
_DANGER = ('The servers of TensorFlow have no passwords and no encryption, and listen on every network of a machine: '
           'anyone who can reach a port can run any code there as you. ')
_ADVICE = ('Let only the machines of the cluster reach these ports (private network, firewall); see '
           'docs/many_machines.md.')


def serve(config: cluster_config.ClusterConfig, num_cpu_devices: int = 1, use_gpus: bool = True,
          use_all_cores: bool = False, restarts: bool = False, is_replaceable: bool = False) -> NoReturn:
    """Lends the devices of this process to the cluster until training has ended, or SIGTERM or SIGINT arrives.

    A signal is passed on to the chief, which ends the step, writes a checkpoint, and ends training. Without a chief,
    after 25 seconds, or at a second signal, the process ends without that. With `is_replaceable`, and while another
    worker serves, nobody is asked: training continues, and this process leaves after 25 seconds, when training ends, or
    at a second signal. It exits at once, with code 0, because TensorFlow has no other way to stop a server. Unless
    `use_all_cores` is set, each CPU device has one thread, as virtual devices do.

    With `restarts`, the process ends with `child_process.TRY_AGAIN` when the third chief is lost: TensorFlow never
    frees all that belonged to a lost chief. The next chief takes as long to start as this process.

    Args:
        config: `ClusterConfig`; its task is a worker or a parameter server.
        num_cpu_devices: number of devices into which the CPU is split, one for each stage that the chief places here.
        use_gpus: whether to lend the GPUs of this machine too.
        use_all_cores: whether the CPU has as many threads as cores, as on the host of accelerators.
        restarts: whether a parent restarts this process.
        is_replaceable: whether training continues without this process, over other workers.

    Raises:
        RuntimeError: the port stays taken; the message says what to do.
    """
    ports.check(config)  # before signals are caught, so that a signal ends this wait
    events: queue.SimpleQueue[int] = queue.SimpleQueue()
    _catch_signals(events)
    server = _start(config, num_cpu_devices, use_gpus, use_all_cores)
    devices = f'{num_cpu_devices} CPU device{"s" * (num_cpu_devices > 1)}'
    print(f'{config.task} serves at {config.address} with {devices}.', flush=True)
    is_over = threading.Event()
    threading.Thread(target=_await_end, args=(config, server.target, is_over, events), name='end', daemon=True).start()
    if restarts:
        threading.Thread(target=_count_chiefs, args=(config, is_over, events), name='chiefs', daemon=True).start()
    while (event := _next(events, _SECONDS_BETWEEN_CATCHES)) is None:
        _catch_signals(events)  # TensorFlow replaces the handler of SIGTERM when a coordinator of TPUs connects
    if event == _SIGNAL and is_replaceable and _has_others(config):
        print(leaving(config), flush=True)
        _next(events, SECONDS_TO_LEAVE)
    elif event == _SIGNAL and messages.ask_chief(config, messages.STOP, server.target):
        print(f'{config.task} was asked to stop, and has told the chief.', flush=True)
        _next(events, SECONDS_TO_LEAVE)
    print(f'{config.task} restarts, to free what TensorFlow keeps of {_MOST_LOST_CHIEFS} chiefs that were lost.'
          if event == _WORN else f'{config.task} has ended.', flush=True)
    sys.stderr.flush()
    os._exit(child_process.TRY_AGAIN if event == _WORN else 0)


def _has_others(config):
    """Returns whether another worker serves, over which training can continue."""
    others = [config.jobs['worker'][index] for job, index in config.tasks('worker') if index != config.task_index]
    return any(ports.state_of(address) is ports.State.SERVES for address in others)


def leaving(config: cluster_config.ClusterConfig) -> str:
    """Returns a sentence of a process that was asked to stop, and without which training continues."""
    return (f'{config.task} was asked to stop: it leaves in {SECONDS_TO_LEAVE} s, or when training ends. Training '
            'continues without it (--replace_after_seconds).')


def _catch_signals(events):
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda *unused: events.put(_SIGNAL))


def _next(events, seconds):
    """Returns the next event, or None after `seconds`. It polls: a long wait could delay a signal just before it."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with contextlib.suppress(queue.Empty):
            return events.get(timeout=_SECONDS_TO_NOTICE)
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
        raise RuntimeError(ports.in_words(config, str(error).splitlines()[0])) from error


def _await_end(config, target, is_over, events):
    with contextlib.suppress(tf.errors.OpError):
        messages.wait_for(config, messages.ENDED, target)
        is_over.set()
        time.sleep(_SECONDS_TO_CLOSE)
        events.put(_ENDED)


def _count_chiefs(config, is_over, events):
    """Looks whether the chief is there: a chief that ends training says so before its port closes."""
    [address], num_lost, was_there = config.jobs['chief'], 0, False
    while num_lost < _MOST_LOST_CHIEFS:
        time.sleep(_SECONDS_BETWEEN_LOOKS)
        state = ports.state_of(address)
        num_lost += was_there and state is ports.State.NOBODY
        was_there = state is ports.State.SERVES or was_there and state is not ports.State.NOBODY
    if not is_over.wait(_SECONDS_TO_CLOSE):
        events.put(_WORN)


def check_addresses(config: cluster_config.ClusterConfig, is_chosen: bool) -> None:
    """Refuses a cluster that other machines can reach without --cluster_network, and warns of it with that flag.

    Args:
        config: `ClusterConfig`.
        is_chosen: whether --cluster_network was given.

    Raises:
        ValueError: it was not given, and other machines can reach this process.
    """
    who = _reachable(config, private_network.interfaces())
    if who and not is_chosen:
        raise ValueError(
            f'{who}. {_DANGER}Give --cluster_network=private, which lets this process listen at its own address alone, '
            'for hosts of the cluster alone; or, where a firewall closes the ports to all others, '
            '--cluster_network=all. On one machine, start the cluster by lingpipe.cluster.local_cluster, which gives '
            'it a network of its own where the system allows that, and has --no-isolated. See docs/many_machines.md.')
    warn_about_addresses(config)


def _reachable(config, interfaces):
    """Says why other machines can reach this process; None: they cannot."""
    outside = [address for job in config.jobs.values() for address in job if not is_loopback(address)]
    if outside:
        return f'{_listed(outside)}: an address that is not only of this machine'
    others = [name for name in interfaces if name not in ('lo', 'lo0')]
    if others:
        return (f'{config.address} is an address of this machine only, but TensorFlow listens on its other networks '
                f'too ({_listed(others)})')
    return None


def warn_about_addresses(config: cluster_config.ClusterConfig) -> None:
    """Logs a warning if other machines could reach the servers of a cluster.

    Args:
        config: `ClusterConfig`.
    """
    sentence = warning(config, private_network.interfaces())
    if sentence:
        logging.warning('%s', sentence)


def warning(config: cluster_config.ClusterConfig, interfaces: Iterable[str]) -> str | None:
    """Returns the warning about the addresses of a cluster, or None.

    Args:
        config: `ClusterConfig`.
        interfaces: names of the network interfaces of this machine.
    """
    public = [address for job in config.jobs.values() for address in job if _is_public(address)]
    if public:
        return (f'{_listed(public)}: an address of the public Internet. {_DANGER}Use addresses of a private network. '
                f'{_ADVICE}')
    who = _reachable(config, interfaces)
    return f'{who}. {_DANGER}{_ADVICE}' if who else None


def is_loopback(address: str) -> bool:
    """Returns whether 'host:port' can be reached only from its own machine, as far as the name shows."""
    host = _host(address)
    ip = _ip(host)
    return ip.is_loopback if ip else host.lower() == 'localhost'


def _is_public(address):
    ip = _ip(_host(address))
    return ip is not None and ip.is_global


def _host(address):
    return cluster_config.host_and_port(address)[0]


def _ip(host):
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _listed(addresses):
    return ', '.join(addresses[:3]) + (', ...' if len(addresses) > 3 else '')
