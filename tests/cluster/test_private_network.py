"""Processes on a network of their own, on which a cluster of two meets at loopback addresses of the machine."""

import errno
import json
import os
import pathlib
import re
import socket
import subprocess
import sys

import pytest

from lingpipe.cluster import cluster_config, private_network

ROOT = pathlib.Path(__file__).parents[2]
PROGRAM = ROOT / 'tests/programs/private_task.py'
NO_ANSWER = r'answer( \w*Error)?'


def allows_a_private_network():
    """Asks in a process of its own: that of the tests has threads."""
    program = 'import sys; from lingpipe.cluster import private_network; sys.exit(not private_network.can_have_private_network())'
    return subprocess.run([sys.executable, '-c', program], env={**os.environ, 'PYTHONPATH': str(ROOT)},
                          check=False).returncode == 0


needs_a_network = pytest.mark.skipif(not allows_a_private_network(), reason='this system allows no network of its own')


class Task:
    """A process of a cluster."""

    def __init__(self, config):
        self.config = config
        self._process = subprocess.Popen(
            [sys.executable, str(PROGRAM)], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env={**os.environ, 'PYTHONPATH': str(ROOT), 'TF_CONFIG': config.to_json()})

    def begin(self, *words):
        """Lets it do something."""
        self._process.stdin.write(' '.join(map(str, words)) + '\n')
        self._process.stdin.flush()

    def answer(self):
        """Returns its next line."""
        return self._process.stdout.readline().strip()

    def warning(self):
        """Returns the next line that it writes to standard error."""
        return self._process.stderr.readline()

    def do(self, *words):
        """Lets it do something, and returns what it says then."""
        self.begin(*words)
        return self.answer()

    def kill(self):
        """Ends it, whatever it does."""
        self._process.kill()
        self._process.communicate()

    def end(self):
        """Waits for its end; returns its exit code and what it wrote to standard error."""
        _, errors = self._process.communicate()
        return self._process.returncode, errors


@pytest.fixture(name='start')
def start_fixture():
    """Returns a function that starts the task of a `ClusterConfig`, which has its own network once this returns."""
    tasks = []

    def start(config):
        tasks.append(Task(config))
        jobs, interfaces = json.loads(tasks[-1].answer())
        assert interfaces == ['lo']
        return tasks[-1], jobs

    yield start
    for task in tasks:
        task.kill()


def configs(hosts=('127.0.0.1', '127.0.0.1')):
    """Returns the configurations of a chief and a worker."""
    ports = [address.rpartition(':')[2] for address in cluster_config.free_addresses(2)]
    jobs = {job: [f'{host}:{port}'] for job, host, port in zip(('chief', 'worker'), hosts, ports)}
    return [cluster_config.ClusterConfig(jobs, job, 0) for job in jobs]


@needs_a_network
def test_two_tasks_reach_each_other_and_nobody_else(start):
    (chief, inside), (worker, same) = map(start, configs())
    assert inside == same == {'chief': ['127.0.0.1:20000'], 'worker': ['127.0.0.1:20001']}
    assert (f'chief:0 127.0.0.1:20000 is {chief.config.address}, worker:0 127.0.0.1:20001 is {worker.config.address}.'
            in chief.warning())
    for client, server in ((chief, worker), (worker, chief)):
        server.begin('accept')
        assert client.do('ask', server.config.task_type, 0) == 'answer 3000000'
        assert server.answer() == 'accepted'
    assert chief.do('reach', *worker.config.address.split(':')) == 'unreachable'


@needs_a_network
def test_a_task_listens_at_its_own_address_alone(start):
    task, _ = start(configs(['127.0.0.3', '127.0.0.4'])[0])
    port = task.config.address.rpartition(':')[2]
    listening = subprocess.run(['ss', '-Hltn', f'sport = :{port}'], capture_output=True, text=True, check=True).stdout
    assert [line.split()[3] for line in listening.splitlines()] == [task.config.address]


@needs_a_network
def test_an_address_that_is_taken_is_waited_for():
    config = configs()[0]
    with socket.create_server(cluster_config.host_and_port(config.address)):
        task = Task(config)
        warning = task.warning()
    assert f'cannot serve at port {config.address.rpartition(":")[2]} (Address already in use)' in warning
    assert json.loads(task.answer())[1] == ['lo']
    task.kill()


@needs_a_network
def test_hosts_that_are_not_of_the_cluster_are_refused(start):
    config, _ = configs(['127.0.0.3', '127.0.0.4'])
    task, _ = start(config)
    stranger, _ = start(cluster_config.ClusterConfig(
        {**configs(['127.0.0.5', '127.0.0.5'])[0].jobs, 'worker': config.jobs['chief']}, 'chief', 0))
    assert re.fullmatch(NO_ANSWER, stranger.do('ask', 'worker', 0))


@needs_a_network
def test_who_is_not_there_yet_closes_the_connection(start):
    chief, _ = start(configs()[0])
    assert re.fullmatch(NO_ANSWER, chief.do('ask', 'worker', 0))


@needs_a_network
@pytest.mark.parametrize('host, shown', [('127.0.0.1', 'closed'), ('nobody.invalid', 'ConnectionResetError')])
def test_a_process_that_has_ended_is_told_from_a_lost_host(host, shown, start):
    chief, _ = start(configs(['127.0.0.1', host])[0])
    assert chief.do('hear', 'worker', 0) == shown


@needs_a_network
@pytest.mark.parametrize('host, reason', [('0.0.0.0', 'means every network of this machine'),
                                          ('192.0.2.1', 'cannot listen at 192.0.2.1:.* Give an address of this machine')])
def test_an_address_that_is_not_of_one_network_here_is_refused(host, reason):
    code, errors = Task(configs([host, '127.0.0.1'])[0]).end()
    assert code == 1 and re.search(reason, errors), errors


@needs_a_network
@pytest.mark.parametrize('cluster, tasks', [
    ('pipeline', ['chief:0', 'worker:0']), ('parameter_server', ['chief:0', 'ps:0', 'worker:0']),
    ('multi_worker', ['worker:0', 'worker:1'])])
def test_a_cluster_trains_over_networks_of_their_own(cluster, tasks, tmp_path):
    jobs = {}
    for task, address in zip(tasks, cluster_config.free_addresses(len(tasks))):
        jobs.setdefault(task.partition(':')[0], []).append(address)
    (tmp_path / 'cluster.json').write_text(json.dumps({'cluster': jobs}))
    chief, *others = processes = [subprocess.Popen(
        [sys.executable, str(ROOT / 'run.py'), '--model=tiny_digits', '--logdir=logs', f'--cluster={cluster}',
         '--cluster_spec=cluster.json', '--cluster_network=private', f'--task={task}',
         '--model_params_override=train.max_steps=2'],
        cwd=tmp_path, env={**os.environ, 'PYTHONPATH': str(ROOT / 'tests/programs')}, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT) for task in tasks]
    try:
        printed = chief.communicate(timeout=200)[0]
        assert chief.returncode == 0 and 'Final Test after 2 steps' in printed, printed
        for other, task in zip(others, tasks[1:]):
            assert re.search(f'{task} (has ended|stopped after step 2)', other.communicate(timeout=60)[0])
    finally:
        for process in processes:
            process.kill()
            process.wait()


@needs_a_network
def test_an_interface_that_is_down_reaches_nobody():
    """Loopback of a new network is down, until it is set up."""
    program = """
from lingpipe.cluster import private_network
private_network._set_up_loopback, set_up = lambda: print(private_network.interfaces()), private_network._set_up_loopback
private_network.enter_private_network()
set_up()
print(private_network.interfaces())
"""
    done = subprocess.run([sys.executable, '-c', program], env={**os.environ, 'PYTHONPATH': str(ROOT)}, check=True,
                          stdout=subprocess.PIPE, text=True)
    assert done.stdout.splitlines() == ['[]', "['lo']"]


def test_a_relay_accepts_again_once_a_descriptor_is_free():
    """The listener fails twice, as `accept` does when a process has all the files that it may have."""
    attempts = iter([OSError(errno.EMFILE, 'Too many open files'), OSError(errno.ECONNABORTED, 'aborted'), 'connection'])

    class Listener:
        def accept(self):
            found = next(attempts)
            if isinstance(found, OSError):
                raise found
            return found

    assert next(private_network._accepted(Listener())) == 'connection'
