"""Servers as processes on loopback: they compute, end when told to, and say why they cannot start."""

import contextlib
import pathlib
import signal
import socket

import pytest

from lingpipe.cluster import answers, cluster_config, server, waits
from tests import forked_programs

PROGRAM = pathlib.Path(__file__).parents[1] / 'programs/run_server.py'


@pytest.fixture(name='start')
def start_fixture():
    """Return a function that starts a task of a cluster of one chief and two workers; what still runs is killed after
    the test."""
    chief, *workers = cluster_config.free_addresses(3)
    jobs = {'chief': [chief], 'worker': workers}
    with contextlib.ExitStack() as stack:
        def start(kind, index, *arguments):
            text = cluster_config.ClusterConfig(jobs, kind, index).to_json()
            process = forked_programs.ForkedProgram([PROGRAM, *arguments], {'TF_CONFIG': text})
            stack.callback(process.communicate)
            stack.callback(process.kill)
            return process
        start.jobs = jobs
        yield start


@pytest.mark.parametrize('number', [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_a_signal_ends_a_server_at_once_and_others_need_not_be_there(start, number):
    worker = start('worker', 1)
    assert worker.stdout.readline().startswith('worker:1 serves at ')
    worker.send_signal(number)
    assert worker.wait(timeout=20) == waits.TRY_AGAIN


def test_a_signal_ends_the_wait_for_a_port(start):
    host, _, port = start.jobs['worker'][0].rpartition(':')
    with socket.create_server((host, int(port))):
        worker = start('worker', 0)
        worker.await_error_line('WARNING:absl:worker:0 cannot serve')
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(timeout=20) == -signal.SIGTERM


def test_stopped_and_killed_servers_are_found_silent(start):
    workers = [start('worker', index) for index in range(2)]
    for worker in workers:
        worker.stdout.readline()
    config = cluster_config.ClusterConfig(start.jobs, 'chief', 0)
    assert answers.silent_tasks(config) == []
    workers[1].send_signal(signal.SIGSTOP)
    assert answers.silent_tasks(config, seconds=1) == ['worker:1']
    workers[0].kill()
    workers[0].wait()
    assert answers.silent_tasks(config, seconds=1) == ['worker:0', 'worker:1']


def test_a_worker_that_is_replaceable_leaves_and_asks_nobody(start):
    workers = [start('worker', index, 'is_replaceable') for index in range(2)]
    chief = start_and_await_listening(start)
    workers[1].send_signal(signal.SIGTERM)
    assert workers[1].wait(timeout=60) == waits.TRY_AGAIN
    assert 'worker:1 was asked to stop: it leaves in 1 s, or when training ends.' in workers[1].stdout.read()
    assert chief.poll() is None and workers[0].poll() is None


def test_the_last_worker_asks_the_chief_though_others_could_replace_it(start):
    workers = [start('worker', index, 'is_replaceable') for index in range(2)]
    chief = start_and_await_listening(start)
    workers[0].kill()
    workers[0].wait()
    workers[1].send_signal(signal.SIGTERM)
    assert chief.stdout.readline() == 'worker:1 asks to stop\n'
    assert workers[1].wait(timeout=60) == 0
    assert 'worker:1 was asked to stop, and has told the chief.' in workers[1].stdout.read()


def test_servers_end_with_the_exit_code_of_the_chief(start):
    workers = [start('worker', index) for index in range(2)]
    chief = start('chief', 0, 'and_fail')
    assert 'told all\n' in iter(chief.stdout.readline, ''), chief.communicate()
    workers[0].send_signal(signal.SIGTERM)  # as a launcher does once a process has failed
    _, err = chief.communicate(timeout=120)
    assert [worker.wait(timeout=60) for worker in workers] == [3, 3], err


def start_and_await_listening(start):
    """Return a chief that has reached all workers."""
    chief = start('chief', 0, 'until_asked_to_stop')
    assert 'listening\n' in iter(chief.stdout.readline, ''), chief.communicate()
    return chief


@pytest.mark.parametrize('interfaces, shown', [
    (['lo', 'eth0'], 'eth0'), (['eth0', 'eth1', 'wg0', 'lo', 'x'], 'eth0, .*, wg0, ...')])
def test_a_cluster_that_others_can_reach_needs_a_trusted_network(interfaces, shown, monkeypatch):
    monkeypatch.setattr(socket, 'if_nameindex', lambda: list(enumerate(interfaces)))
    with pytest.raises(ValueError, match=rf'in networks \({shown}\), .* without passwords .* --trusted_network'):
        server.check_networks()


def test_a_machine_without_a_network_needs_no_trust(monkeypatch):
    monkeypatch.setattr(socket, 'if_nameindex', lambda: [(1, 'lo')])
    server.check_networks()
