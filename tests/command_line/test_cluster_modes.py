"""What a process does by its task: those that serve, and a chief that uses them."""

import contextlib
import json
import pathlib
import signal
import socket

import pytest

from tests import forked_programs

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture(name='start')
def start_fixture(tmp_path):
    """Return a function that starts run.py as one task of the only cluster, whose addresses have three `jobs`."""
    with contextlib.ExitStack() as stack:
        with contextlib.ExitStack() as held:
            ports = [held.enter_context(socket.create_server(('127.0.0.1', 0))).getsockname()[1] for _ in range(3)]
        addresses = [f'127.0.0.1:{port}' for port in ports]

        def start(jobs, task, cluster, *flags):
            spec = {job: [address for other, address in zip(jobs, addresses) if other == job] for job in jobs}
            (tmp_path / 'cluster.json').write_text(json.dumps({'cluster': spec}))
            process = forked_programs.ForkedProgram(
                [ROOT / 'run.py', '--model=tiny_digits', '--logdir=logs', f'--cluster={cluster}', '--trusted_network',
                 '--cluster_spec=cluster.json',
                 f'--task={task}', *flags], {'PYTHONPATH': str(ROOT / 'tests/programs')}, tmp_path)
            stack.callback(process.communicate)
            stack.callback(process.kill)
            job, _, index = task.partition(':')
            return process, spec[job][int(index)]
        yield start


@pytest.mark.parametrize('cluster, jobs, task, devices', [
    ('pipeline', ['chief', 'worker'], 'worker:0', '2 CPU devices'),
    ('parameter_server', ['chief', 'worker', 'ps'], 'ps:0', '1 CPU device')])
def test_a_server_lends_a_device_for_each_stage_until_it_is_stopped(start, tmp_path, cluster, jobs, task, devices):
    process, address = start(jobs, task, cluster)
    assert process.stdout.readline() == f'{task} serves at {address} with {devices}.\n'
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate()
    assert (process.returncode, out) == (75, f'{task} has ended.\n'), err
    assert not (tmp_path / 'logs').exists()


def test_workers_outlive_a_chief_with_wrong_params_and_are_traced(start, tmp_path):
    """The trace that the next chief writes has a row for each of their devices."""
    jobs = ['chief', 'worker', 'worker']
    workers = [start(jobs, f'worker:{number}', 'pipeline')[0] for number in range(2)]
    for worker in workers:
        assert ' serves at ' in worker.stdout.readline()
    refused, _ = start(jobs, 'chief:0', 'pipeline', '--model_params_override=task.body.num_partitions=0')
    assert 'Error: num_partitions=0 is not possible' in refused.communicate()[1]
    chief, _ = start(jobs, 'chief:0', 'pipeline', '--mode=trace', '--steps=1')
    out, err = chief.communicate()
    assert chief.returncode == 0, err
    assert [worker.wait() for worker in workers] == [0, 0]
    assert ': gpipe, 2 partitions on 2 devices, 2 micro-batches' in out
    events = json.loads((tmp_path / 'logs/trace/trace.json').read_text())['traceEvents']
    rows = [event['args']['name'] for event in events if event['name'] == 'thread_name']
    assert rows == ['worker:0/CPU:0, partition 0', 'worker:1/CPU:0, partition 1', 'input']
    began = {(event['name'], event['tid']): event['ts'] for event in events if event['ph'] == 'X'}
    for micro_batch in range(2):
        assert began[f'F{micro_batch}', 0] < began[f'F{micro_batch}',
                                                   1] < began[f'B{micro_batch}', 1] < began[f'B{micro_batch}', 0]


@pytest.mark.parametrize('task', ['worker:0', 'worker:1'])
def test_a_worker_that_waits_for_another_ends_by_a_signal(start, task):
    """TensorFlow would block all threads of Python."""
    process, address = start(['worker', 'worker'], task, 'multi_worker')
    process.await_error_line(f'{task} at {address} waits for all 2 workers.')
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 75
