"""A user's own script over the processes of a cluster, compared with the same script on one machine."""

import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

SCRIPT = pathlib.Path(__file__).parents[1] / 'programs/fit_script.py'


def start(folder, alone=False, words=()):
    folder.mkdir(exist_ok=True)
    cluster = [] if alone else ['-m', 'lingpipe', 'local_cluster', '--workers=2', '--no-isolated', '--']
    return subprocess.Popen(
        [sys.executable, *cluster, SCRIPT, folder, *['--alone'] * alone, *words], stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, env={**os.environ, 'PYTHONPATH': str(SCRIPT.parents[2])})


def result(process, folder):
    output = process.communicate(timeout=600)[0]
    assert process.returncode == 0, output
    with np.load(folder / 'found.npz') as found:
        return output, dict(found)


@pytest.fixture(scope='module')
def alone(tmp_path_factory):
    folder = tmp_path_factory.mktemp('alone')
    return result(start(folder, alone=True), folder)[1]


def assert_same_bits(found, expected):
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)


def strike(folder, name, number, words=()):
    """Send a signal to a process after the first epoch; return how the cluster ended, and its output."""
    process = start(folder, words=words)
    told = next(line for line in process.stdout if f'{name} is process' in line)
    while not (folder / 'epoch').exists():
        time.sleep(0.05)
    os.kill(int(told.split()[-1]), number)
    return process.communicate(timeout=300)[0], process.returncode


def test_fit_over_processes_has_the_bits_of_one_machine(tmp_path, alone):
    output, found = result(start(tmp_path), tmp_path)
    assert_same_bits(found, alone)
    assert re.search('devices .*/task:0/.*/task:1/', output) and (tmp_path / 'model.keras').exists()
    assert output.count('has ended.') == 2  # the workers


def test_a_lost_worker_is_named_and_the_script_resumes(tmp_path, alone):
    output, code = strike(tmp_path, 'worker 1', signal.SIGKILL)
    assert code == 75 and 'Worker 1 was lost. Start the script again' in output
    assert not (tmp_path / 'found.npz').exists()
    assert_same_bits(result(start(tmp_path), tmp_path)[1], alone)


def test_a_worker_that_hangs_ends_the_script_which_names_it(tmp_path):
    output, code = strike(tmp_path, 'worker 1', signal.SIGSTOP, ['--worker_timeout_seconds=10'])
    assert code == 75 and re.search(
        r'\[chief\] Error: Waited 10 s for all workers to answer .*No answer from worker:1 \(127', output)


@pytest.mark.parametrize('name', ['chief', 'worker 1'])
def test_sigterm_ends_all_processes(tmp_path, name):
    output, code = strike(tmp_path, name, signal.SIGTERM)
    assert code == 75 and output.count('ended with exit code 75') == 3
    assert '[chief] Stopped by SIGTERM. Start the script again' in output
