"""What a process does by its task: here those that serve."""

import contextlib
import json
import pathlib
import signal
import socket

import pytest

from tests.distribute import forked_programs

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture(name='start')
def start_fixture(tmp_path):
    """Returns a function that starts run.py as one task of a cluster of its own."""
    with contextlib.ExitStack() as stack:
        with contextlib.ExitStack() as held:
            ports = [held.enter_context(socket.create_server(('127.0.0.1', 0))).getsockname()[1] for _ in range(3)]
        jobs = {job: [f'127.0.0.1:{port}'] for job, port in zip(('chief', 'worker', 'ps'), ports)}

        def start(cluster, task):
            needed = {job: jobs[job] for job in (jobs if cluster == 'parameter_server' else ('chief', 'worker'))}
            (tmp_path / 'cluster.json').write_text(json.dumps({'cluster': needed}))
            process = forked_programs.ForkedProgram(
                [ROOT / 'run.py', '--model=tiny_digits', '--logdir=logs', f'--cluster={cluster}', '--cluster_spec=cluster.json',
                 f'--task={task}'], {'PYTHONPATH': str(ROOT / 'tests/training')}, tmp_path)
            stack.callback(process.communicate)
            stack.callback(process.kill)
            return process, needed
        yield start


@pytest.mark.parametrize('cluster, task, devices', [
    ('pipeline', 'worker:0', '2 CPU devices'), ('parameter_server', 'ps:0', '1 CPU device')])
def test_a_server_lends_a_device_for_each_stage_until_it_is_stopped(start, tmp_path, cluster, task, devices):
    process, jobs = start(cluster, task)
    address, = jobs[task.partition(':')[0]]
    assert process.stdout.readline() == f'{task} serves at {address} with {devices}.\n'
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, f'{task} has ended.\n'), err
    assert not (tmp_path / 'logs').exists()
