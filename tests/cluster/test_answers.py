"""Workers that do not answer, and a port that is taken, are waited for and named."""

import functools
import logging
import socket
import threading

import pytest

from lingpipe.cluster import answers, cluster_config
from lingpipe.placements import pipeline_hosts


@pytest.fixture(name='at_once')
def at_once_fixture(monkeypatch):
    monkeypatch.setattr(answers, 'SECONDS_TO_WAIT', 0)


def test_enough_workers_end_the_wait(monkeypatch):
    monkeypatch.setattr(answers, 'SECONDS_BETWEEN_TRIES', 0)
    config = cluster_config.ClusterConfig({'worker': ['a:1', 'b:2']}, 'worker', 0)
    missing = [['worker:0', 'worker:1'], ['worker:1'], []]
    assert answers.await_workers(config, functools.partial(missing.pop, 0)) == []
    missing = [['worker:0', 'worker:1'], ['worker:1'], []]
    assert answers.await_workers(
        config, functools.partial(missing.pop, 0), lambda names, seconds: len(names) < 2) == ['worker:1']


def test_workers_that_do_not_answer_are_named(at_once):
    with (socket.create_server(('127.0.0.1', 0)) as server, socket.create_server(('127.0.0.1', 0)) as other,
          socket.create_server(('127.0.0.1', 0)) as free):
        closed, own = (f'127.0.0.1:{one.getsockname()[1]}' for one in (other, free))
        other.close()
        free.close()
        silent = f'127.0.0.1:{server.getsockname()[1]}'
        with pytest.raises(ConnectionError) as caught:
            pipeline_hosts.connect_hosts(cluster_config.ClusterConfig({'chief': [own], 'worker': [silent, closed]}, 'chief', 0))
    assert str(caught.value).startswith(f'After 0 s there is no answer from worker:0 ({silent}), worker:1 ({closed}), of '
                                        '2 workers. Check that each is running')


def test_a_chief_whose_port_stays_taken_says_so_and_reaches_no_worker(at_once):
    with socket.create_server(('127.0.0.1', 0)) as taken, socket.create_server(('127.0.0.1', 0)) as worker:
        worker.settimeout(0.5)
        port, other = taken.getsockname()[1], worker.getsockname()[1]
        jobs = {'chief': [f'127.0.0.1:{port}'], 'worker': [f'127.0.0.1:{other}']}
        with pytest.raises(RuntimeError,
                           match=f'^chief:0 cannot serve at port {port} .* or give this task another port'):
            pipeline_hosts.connect_hosts(cluster_config.ClusterConfig(jobs, 'chief', 0))
        with pytest.raises(TimeoutError):
            worker.accept()


def test_connections_that_do_not_come_are_named(told, monkeypatch):
    monkeypatch.setattr(answers, 'silent_tasks', lambda config: ['worker:1'])
    jobs = {'chief': ['a:1'], 'worker': ['b:2', 'c:3'], 'ps': ['d:4']}
    with answers.connecting(cluster_config.ClusterConfig(jobs, 'chief', 0), .2):
        assert told.event.wait(30)
    assert told[0].startswith('Waited 0.2 s for connections to worker:0 (b:2), worker:1 (c:3), ps:0 (d:4). '
                              'No answer came from worker:1. See that ')


def test_a_port_is_used_once_it_is_free(caplog, monkeypatch):
    monkeypatch.setattr(answers, 'SECONDS_TO_WAIT', 30)
    holder = socket.create_server(('127.0.0.1', 0))
    address = f'127.0.0.1:{holder.getsockname()[1]}'
    threading.Timer(.5, holder.close).start()
    config = cluster_config.ClusterConfig({'worker': [address]}, 'worker', 0)
    with caplog.at_level(logging.WARNING), answers.listening(config) as listener:
        assert f'127.0.0.1:{listener.getsockname()[1]}' == address
    [record] = caplog.records
    assert 'worker:0 cannot serve at port' in record.getMessage() and 'waits, 30 s at most' in record.getMessage()
