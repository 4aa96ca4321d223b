"""Trainings with servers on loopback; the chief is a process of its own too, since TensorFlow cannot forget a
cluster."""

import contextlib
import json
import os
import pathlib
import re
import subprocess
import sys
import time

import numpy as np
import pytest
import tensorflow as tf

from lingpipe.cluster import cluster_config
from lingpipe.training import checkpoints
from params import linear_regression
from tests import forked_programs
from tests.curves import curve

PROGRAM = pathlib.Path(__file__).parents[1] / 'programs/train_with_servers.py'


class Cluster:
    """A chief, two workers and two servers."""

    def __init__(self, stack, folder, trial):
        chief, *others = cluster_config.free_addresses(5)
        self._jobs = {'chief': [chief], 'worker': others[:2], 'ps': others[2:]}
        self._stack = stack
        self._processes = {(job, index): self._start(job, index) for job in ('worker', 'ps') for index in range(2)}
        self.chief = self._start('chief', 0, folder, trial)

    def _start(self, job, index, *words):
        process = forked_programs.ForkedProgram([PROGRAM, *words], self._environment(job, index))
        self._stack.callback(process.kill)
        return process

    def _execute(self, job, index):
        process = subprocess.Popen(
            [sys.executable, PROGRAM], env=os.environ | self._environment(job, index), stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL)
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)
        return process

    def _environment(self, job, index):
        return {'TF_CONFIG': cluster_config.ClusterConfig(self._jobs, job, index).to_json()}

    def kill_after_steps(self, job, index, logdir):
        """Kill a task when the first checkpoint is there, and start it again where it was a worker."""
        while self.chief.poll() is None and not checkpoints.complete(logdir / 'train'):
            time.sleep(0.05)
        self._processes[job, index].kill()
        self._processes[job, index].wait()
        if job == 'worker':  # it takes the seconds that it takes a person's worker too
            self._processes[job, index] = self._execute(job, index)


@pytest.fixture(name='start')
def start_fixture(tmp_path):
    with contextlib.ExitStack() as stack:
        yield lambda trial: Cluster(stack, tmp_path, trial)


@pytest.fixture(name='results_of')
def results_of_fixture(start, tmp_path):
    def results_of(cluster):
        cluster = start(cluster) if isinstance(cluster, str) else cluster
        _, err = cluster.chief.communicate(timeout=300)
        assert cluster.chief.returncode == 0, err[-2000:]
        return json.loads((tmp_path / 'results.json').read_text())

    return results_of


def newest_values(logdir):
    """Return {name: value} of the newest checkpoint."""
    reader = tf.train.load_checkpoint(checkpoints.complete(f'{logdir}/train')[0])
    names = [name for name in reader.get_variable_to_shape_map()
             if name.endswith('VARIABLE_VALUE') and not name.startswith('save_counter')]
    return {name.partition('/.ATTRIBUTES')[0]: reader.get_tensor(name) for name in names}


def largest_difference(logdir):
    """Return how far the newest weights are from the true ones."""
    kernel, = [value for value in newest_values(logdir).values() if np.shape(value) == (8, 1)]
    return np.abs(kernel - linear_regression.EightWeights().Train().Instantiate().true_weights).max()


def test_true_weights_are_found_and_no_step_loses_its_count(results_of, tmp_path):
    texts = results_of('find_true_weights')
    for name in ('async', 'sync'):
        assert largest_difference(tmp_path / name) < 0.02, texts[name]
        values = newest_values(tmp_path / name)
        assert values['global_step'] == values['optimizer/SGD/0000'] == 100  # the second is the optimizer's own count
    assert re.search(r'staleness [01]\.\d+', texts['async'])


def test_synchronous_steps_and_checkpoints_equal_one_machine(results_of, tmp_path, assert_close):
    """Each of the two resumes from checkpoints of the other."""
    texts = results_of('digits')
    assert 'resuming from step 2 of 3' in texts[1] and 'resuming from step 3 of 5' in texts[2]
    in_turns, alone = newest_values(tmp_path / 'sync_then_alone'), newest_values(tmp_path / 'alone')
    assert in_turns.keys() == alone.keys() and in_turns['global_step'] == 5
    assert any(name.startswith('moving_average/')
               for name in alone) and any('moving_variance' in name for name in alone)
    assert_close(in_turns, alone)
    steps, of_one_machine = (dict(curve(tmp_path / name / 'train', 'auc')) for name in ('sync', 'alone'))
    assert [steps[step] for step in (1, 2, 3)] == pytest.approx([of_one_machine[step] for step in (1, 2, 3)], rel=1e-5)
    assert 'adds a loss' in texts[4] and not checkpoints.complete(tmp_path / 'refused/train')
    assert 'Final Test after 9 steps' in texts[5] and newest_values(tmp_path / 'sync')['global_step'] == 9


def test_training_outlives_a_worker_and_ends_in_words_with_a_server(start, results_of, tmp_path):
    cluster = start('faults')
    for task in (('worker', 1), ('ps', 0)):
        assert cluster.chief.stdout.readline() == f'{task[0]}\n'
        cluster.kill_after_steps(*task, tmp_path / task[0])
    texts = results_of(cluster)
    assert 'Final Test after 800 steps' in texts['worker'], texts['worker']  # those done again count once
    assert largest_difference(tmp_path / 'worker') < 0.02
    assert re.search(r'Error 75: ps:0 was lost, .*Start the same command on all of them again',
                     texts['ps']), texts['ps']
    assert np.isfinite(list(newest_values(tmp_path / 'ps').values())[0]).all()  # the last checkpoint can be read
