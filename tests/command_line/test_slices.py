"""Hosts of a TPU slice, mocked by processes on loopback that run one command."""

import contextlib
import pathlib
import re
import signal
import socket

import pytest

from lingpipe.cluster import cluster_config
from tests import forked_programs
from tests.tiny_runs import stored, tiny  # noqa: F401  fixtures

PROGRAMS = pathlib.Path(__file__).parents[1] / 'programs'
_SECONDS = 60  # a slice takes ten on an idle machine


def first_of_two_free_ports():
    """Return a loopback address; the next port is the chief's."""
    while True:
        with contextlib.suppress(OSError), socket.create_server(('127.0.0.1', 0)) as server:
            port = server.getsockname()[1]
            socket.create_server(('127.0.0.1', port + 1)).close()
            return f'127.0.0.1:{port}'


@pytest.fixture(name='start')
def start_fixture(tmp_path, tiny):  # noqa: F811
    """Return a function that starts a host of a slice of two."""
    tiny.evaluation_inputs()['Test'].Instantiate()  # prepares the data
    hosts = [first_of_two_free_ports(), *cluster_config.free_addresses(1)]
    with contextlib.ExitStack() as stack:
        def start(index, overrides=''):
            process = forked_programs.ForkedProgram(
                [PROGRAMS / 'run_slice_host.py', '--model=tiny_digits', f'--logdir={tmp_path}/logs', '--device=tpu',
                 '--tpu=slice', f'--model_params_override=task.dtype_policy=float32{overrides}'],
                {'TPU_WORKER_HOSTNAMES': ','.join(hosts), 'TPU_WORKER_ID': str(index), 'TFDS_DATA_DIR': tiny._data_dir,
                 'CUDA_VISIBLE_DEVICES': '', 'OMP_NUM_THREADS': '1'}, tmp_path, has_one_output=True)
            stack.callback(process.communicate)
            stack.callback(process.kill)
            return process

        start.hosts = hosts
        yield start


def test_one_command_on_all_hosts_trains_as_one_machine(start, tmp_path, tiny, stored, assert_close):  # noqa: F811
    other, chief = start(1), start(0)
    printed, _ = chief.communicate(timeout=_SECONDS)
    assert chief.returncode == 0, printed
    served, _ = other.communicate(timeout=_SECONDS)
    own_words = [line for line in served.splitlines() if line.startswith('worker:')]
    assert (other.returncode, own_words[-2:]) == (0, [
        f'worker:1 serves at {start.hosts[1]} with 1 CPU device.', 'worker:1 has ended.'])
    for index in range(2):
        assert f'16 rows from /job:worker/replica:0/task:{index}/device:CPU:0' in printed
    assert 'Final Test after 12 steps: loss ' in printed and 'worker:0 has ended.' in printed
    tiny.only_train(tmp_path / 'alone')
    assert_close(stored(tmp_path / 'logs/train/ckpt-12'), stored(tmp_path / 'alone/train/ckpt-12'))


def test_a_signal_to_a_host_ends_all_and_the_same_command_resumes(
        start, tmp_path, tiny, stored, assert_close):  # noqa: F811
    endless = '; train.max_steps=100000; train.steps_per_loop=1'
    other, chief = start(1, overrides=endless), start(0, overrides=endless)
    printed = ''
    while 'First step after' not in printed:
        line = chief.stdout.readline()
        assert line, printed
        printed += line
    other.send_signal(signal.SIGTERM)
    printed, _ = chief.communicate(timeout=_SECONDS)
    assert (chief.returncode, other.wait()) == (75, 75), printed
    stopped, = re.findall(r'Stopped by a signal to worker:1 at step (\d+); checkpoint', printed)
    last = int(stopped) + 3
    other, chief = (start(index, overrides=f'; train.max_steps={last}') for index in (1, 0))
    printed, _ = chief.communicate(timeout=_SECONDS)
    assert f'resuming from step {stopped}' in printed
    tiny.only_train(tmp_path / 'alone', train__max_steps=last)
    assert_close(stored(tmp_path / f'logs/train/ckpt-{last}'), stored(tmp_path / f'alone/train/ckpt-{last}'))
