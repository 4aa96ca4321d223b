"""Connections to other workers, which end with their processes."""

import contextlib
import queue
import socket
import struct
import threading

import pytest

from lingpipe.cluster import cluster_config, peer_connections


@pytest.fixture(name='peer')
def peer_fixture(monkeypatch):
    """Returns the socket at which worker 1 listens."""
    monkeypatch.setattr(peer_connections, '_SECONDS_BETWEEN_LOOKS', 0.01)
    monkeypatch.setattr(peer_connections, '_SECONDS_FOR_TENSORFLOW', 0.05)
    with socket.create_server(('127.0.0.1', 0)) as listener:
        listener.settimeout(60)
        yield listener


@pytest.fixture(name='scope')
def scope_fixture(peer):
    """Returns the scope of worker 0, and the queue of what it is told."""
    sentences = queue.SimpleQueue()
    jobs = {'worker': ['127.0.0.1:1', f'127.0.0.1:{peer.getsockname()[1]}']}
    return peer_connections.ending_with_others(
        cluster_config.ClusterConfig(jobs, 'worker', 0), sentences.put), sentences


def test_a_process_ends_soon_after_another_one(peer, scope):
    ending, sentences = scope
    with ending:
        connection, _ = peer.accept()
        connection.sendall(b'settings of gRPC')
        with pytest.raises(queue.Empty):
            sentences.get(timeout=0.2)
        peer.close()
        connection.close()
        assert sentences.get(timeout=60).startswith('The process of worker:1 (127.0.0.1:')


def test_a_process_that_has_ended_before_is_noticed(peer, scope):
    ending, sentences = scope
    peer.close()
    with ending:
        assert 'has ended in the middle of training' in sentences.get(timeout=60)


def test_connections_are_renewed_before_a_server_closes_them(peer, scope, monkeypatch):
    monkeypatch.setattr(peer_connections, '_SECONDS_OF_A_CONNECTION', 0.05)
    ending, sentences = scope
    with ending, contextlib.ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(peer.accept()[0])
        assert sentences.empty()


def test_a_connection_that_is_reset_is_opened_again(peer, scope):
    """So a relay of a private network says that the network is in trouble, not that a process has ended."""
    ending, sentences = scope
    with ending:
        for _ in range(3):
            connection, _ = peer.accept()
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))
            connection.close()
        with peer.accept()[0]:
            assert sentences.empty()
        assert sentences.get(timeout=60).startswith('The process of worker:1 (127.0.0.1:')


def test_ends_after_the_scope_are_expected(peer, scope):
    ending, sentences = scope
    with ending:
        connection, _ = peer.accept()
    connection.close()
    for thread in threading.enumerate():
        if thread.name == 'peer connection':
            thread.join(60)
    assert sentences.empty()
