"""A port that is taken is named and waited for, and what answers at one is told apart."""

import errno
import logging
import socket
import struct
import threading
import time

import pytest

from lingpipe.cluster import cluster_config, ports


@pytest.fixture(name='taken')
def taken_fixture():
    """Yields a socket that listens, and the configuration of a worker whose port it holds."""
    with socket.create_server(('127.0.0.1', 0)) as taken:
        address = f'127.0.0.1:{taken.getsockname()[1]}'
        yield taken, cluster_config.ClusterConfig({'worker': [address]}, 'worker', 0)


def test_a_port_is_used_once_it_is_free(taken, caplog):
    holder, config = taken
    threading.Timer(.5, holder.close).start()
    with caplog.at_level(logging.WARNING), ports.listening(config, seconds=30) as listener:
        assert f'127.0.0.1:{listener.getsockname()[1]}' == config.address
    [record] = caplog.records
    assert 'worker:0 cannot serve at port' in record.getMessage() and 'waits, 30 s at most' in record.getMessage()


def test_a_port_that_stays_taken_is_an_error(taken):
    with pytest.raises(RuntimeError, match='Address already in use.*or give this task another port'):
        ports.check(taken[1], seconds=.1)


def test_other_errors_are_not_waited_for(taken, monkeypatch):
    monkeypatch.setattr(time, 'sleep', lambda unused_seconds: pytest.fail('waited'))
    monkeypatch.setattr(socket, 'create_server', _deny)
    with pytest.raises(RuntimeError, match='Permission denied'):
        ports.check(taken[1])


def _deny(*unused_arguments, **unused_settings):
    raise PermissionError(errno.EACCES, 'Permission denied')


def _serve(connection):
    connection.sendall(b'settings of gRPC')


def _relay_to_nobody(connection):
    connection.close()


def _reset(connection):
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))
    connection.close()


def _hang(unused_connection):
    pass


@pytest.mark.parametrize('behave, state, seconds', [
    (_serve, 'SERVES', 60), (_relay_to_nobody, 'NOBODY', 60), (_reset, 'UNREACHABLE', 60), (_hang, 'SILENT', .2)])
def test_the_state_of_a_process_is_seen_from_its_first_bytes(taken, behave, state, seconds, monkeypatch):
    holder, config = taken
    connections = []
    monkeypatch.setattr(ports, '_SECONDS_TO_ANSWER', seconds)

    def accept():
        connections.append(holder.accept()[0])
        behave(connections[0])

    accepting = threading.Thread(target=accept, daemon=True)
    accepting.start()
    assert ports.state_of(config.address) is ports.State[state]
    accepting.join()
    connections[0].close()


def test_a_closed_port_and_a_lost_host_are_not_the_same(taken, monkeypatch):
    holder, config = taken
    holder.close()
    assert ports.state_of(config.address) is ports.State.NOBODY
    monkeypatch.setattr(socket, 'create_connection', _time_out)
    assert ports.state_of(config.address) is ports.State.UNREACHABLE


def _time_out(*unused, **options):
    raise TimeoutError
