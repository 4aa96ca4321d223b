"""A port that is taken is named and waited for."""

import logging
import socket
import threading

import pytest

from lingpipe.cluster import cluster_config, ports


@pytest.fixture(name='taken')
def taken_fixture():
    """Yield a socket that listens, and the configuration of a worker whose port it holds."""
    with socket.create_server(('127.0.0.1', 0)) as taken:
        address = f'127.0.0.1:{taken.getsockname()[1]}'
        yield taken, cluster_config.ClusterConfig({'worker': [address]}, 'worker', 0)


def test_a_port_is_used_once_it_is_free(taken, caplog, monkeypatch):
    monkeypatch.setattr(ports, 'SECONDS_TO_WAIT', 30)
    holder, config = taken
    threading.Timer(.5, holder.close).start()
    with caplog.at_level(logging.WARNING), ports.listening(config) as listener:
        assert f'127.0.0.1:{listener.getsockname()[1]}' == config.address
    [record] = caplog.records
    assert 'worker:0 cannot serve at port' in record.getMessage() and 'waits, 30 s at most' in record.getMessage()


def test_a_port_that_stays_taken_is_an_error(taken, monkeypatch):
    monkeypatch.setattr(ports, 'SECONDS_TO_WAIT', .1)
    with pytest.raises(RuntimeError, match='Address already in use.*or give this task another port'):
        ports.check(taken[1])
