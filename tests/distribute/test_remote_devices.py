import socket

import pytest

from lingpipe.distribute import cluster_config, remote_devices


def test_workers_that_do_not_answer_are_named():
    with socket.create_server(('127.0.0.1', 0)) as server, socket.create_server(('127.0.0.1', 0)) as other:
        closed = f'127.0.0.1:{other.getsockname()[1]}'
        other.close()
        jobs = {'chief': ['127.0.0.1:1'], 'worker': [f'127.0.0.1:{server.getsockname()[1]}', closed]}
        with pytest.raises(ConnectionError) as caught:
            remote_devices.connect(cluster_config.ClusterConfig(jobs, 'chief', 0), timeout_seconds=0)
    assert str(caught.value).startswith(f'After 0 s there is no answer from worker:1 ({closed}), of 2 workers. Check that each is running')
