import socket

import pytest

from lingpipe.cluster import cluster_config
from lingpipe.placements import hosts


def test_workers_that_do_not_answer_are_named():
    with (socket.create_server(('127.0.0.1', 0)) as server, socket.create_server(('127.0.0.1', 0)) as other,
          socket.create_server(('127.0.0.1', 0)) as free):
        closed, own = (f'127.0.0.1:{one.getsockname()[1]}' for one in (other, free))
        other.close()
        free.close()
        jobs = {'chief': [own], 'worker': [f'127.0.0.1:{server.getsockname()[1]}', closed]}
        with pytest.raises(ConnectionError) as caught:
            hosts.connect(cluster_config.ClusterConfig(jobs, 'chief', 0), timeout_seconds=0)
    assert str(caught.value).startswith(f'After 0 s there is no answer from worker:1 ({closed}), of 2 workers. Check '
                                        'that each is running')


def test_a_chief_whose_port_stays_taken_says_so_and_reaches_no_worker():
    with socket.create_server(('127.0.0.1', 0)) as taken, socket.create_server(('127.0.0.1', 0)) as worker:
        worker.settimeout(0.5)
        port, other = taken.getsockname()[1], worker.getsockname()[1]
        jobs = {'chief': [f'127.0.0.1:{port}'], 'worker': [f'127.0.0.1:{other}']}
        with pytest.raises(RuntimeError,
                           match=f'^chief:0 cannot serve at port {port} .* or give this task another port'):
            hosts.connect(cluster_config.ClusterConfig(jobs, 'chief', 0), timeout_seconds=0)
        with pytest.raises(TimeoutError):
            worker.accept()
