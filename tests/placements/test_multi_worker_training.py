"""Two workers on loopback, as processes of their own: TensorFlow cannot leave a cluster."""

import contextlib
import os
import pathlib
import re
import resource
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from lingpipe import layers
from lingpipe.cluster import answers, cluster_config
from lingpipe.layers import batch_normalization
from lingpipe.placements import multi_worker_training
from lingpipe.training import errors, trainer
from tests import forked_programs

PROGRAMS = pathlib.Path(__file__).parents[1] / 'programs'
_SECONDS = 240  # a cluster takes eight on an idle machine


def _fork(words, environment):
    return forked_programs.ForkedProgram(words, environment, has_one_output=True)


def _execute(words, environment):
    return subprocess.Popen([sys.executable, *words], env=os.environ | environment, text=True, process_group=0,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


class Cluster:
    """Runs run.py as two workers, which are forked where they need not be started as a person starts them."""

    def __init__(self, folder, data_dir):
        self.folder = folder
        self._environment = {
            'TFDS_DATA_DIR': data_dir, 'TF_CPP_MIN_LOG_LEVEL': '3', 'OMP_NUM_THREADS': '1', 'CUDA_VISIBLE_DEVICES': ''}

    @contextlib.contextmanager
    def started(self, *flags, of_each=({}, {}), flags_of_each=((), ()), start_of_each=(_fork, _fork)):
        """Yield the two processes; `of_each`: for each worker what its environment has besides."""
        addresses = cluster_config.free_addresses(2)
        processes = []
        for index in range(2):
            config = cluster_config.ClusterConfig({'worker': addresses}, 'worker', index)
            processes.append(start_of_each[index](
                [str(PROGRAMS / 'run_worker.py'), '--model=struck_digits', f'--logdir={self.folder}',
                 '--cluster=multi_worker', '--trusted_network',
                 *flags, *flags_of_each[index]],
                 {**self._environment, 'TF_CONFIG': config.to_json(), **of_each[index]}))
        try:
            yield processes
        finally:
            for process in processes:
                process.kill()

    def run(self, *flags, **of_each):
        """Return for each worker its exit code and what it printed."""
        with self.started(*flags, **of_each) as processes:
            printed = [process.communicate(timeout=_SECONDS)[0] for process in processes]
        return [process.returncode for process in processes], printed


@pytest.fixture(scope='module', name='data_dir')
def data_dir_fixture(tiny):
    tiny.evaluation_inputs()['Test'].Instantiate()  # prepares the data
    return tiny._data_dir


@pytest.fixture(scope='module')
def undisturbed(tmp_path_factory, data_dir):
    """A training of two workers, of two partitions each; not to be changed. Sets have other orders in the one that is
    executed."""
    cluster = Cluster(tmp_path_factory.mktemp('undisturbed'), data_dir)
    codes, printed = cluster.run('--model_params_override=train.save_interval_seconds=0',
                                 of_each=({}, {'WEIGHTS': str(cluster.folder / 'weights.npz')}),
                                 start_of_each=(_fork, _execute))
    assert codes == [0, 0], printed
    return cluster, printed


def test_workers_train_as_one_machine_and_have_equal_weights(
        undisturbed, tiny, tmp_path, stored, assert_close):
    """The machine takes the whole batch, and the workers' weights are equal bit for bit."""
    cluster, printed = undisturbed
    assert re.search(r'Final Test after 12 steps: loss \d', printed[0])
    assert printed[1].rstrip().endswith('worker:1 stopped after step 12, and with it all workers.')
    params = tiny.params(task__body__num_replicas=2)
    params.task.body.layers[2] = layers.KerasParams(batch_normalization.BatchNormalization, group_size=2, momentum=0.9)
    trainer.Trainer(params, tiny.evaluation_inputs(), tmp_path).run()
    of_chief = stored(cluster.folder / 'train/ckpt-12')
    assert_close(of_chief, stored(tmp_path / 'train/ckpt-12'))
    of_chief = {name: value for name, value in of_chief.items() if name.startswith('model/')}
    with np.load(cluster.folder / 'weights.npz') as weights:
        of_worker = {f"model/{name.replace('|', '/')}/.ATTRIBUTES/VARIABLE_VALUE": weights[name] for name in weights}
    assert of_chief.keys() == of_worker.keys()
    assert not [name for name, value in of_chief.items() if value.tobytes() != of_worker[name].tobytes()]


def test_workers_stop_together_and_restart_bit_for_bit(
        undisturbed, data_dir, tmp_path, assert_same_checkpoint):
    """A signal to one worker stops all after the same step; after a kill the others end too."""
    cluster = Cluster(tmp_path, data_dir)
    codes, printed = cluster.run(of_each=({}, {'STRIKE': f'5 SIGTERM {tmp_path}/terminated'}))
    assert codes == [errors.EXIT_TRY_AGAIN] * 2, printed
    stopped, = re.findall(r'Stopped by another worker at step (\d+); checkpoint', printed[0])
    assert f'worker:1 stopped by SIGTERM after step {stopped}, and with it all workers.' in printed[1]
    assert 1 <= int(stopped) < 12

    codes, printed = cluster.run(of_each=({}, {'STRIKE': f'11 SIGKILL {tmp_path}/killed'}))
    assert codes == [errors.EXIT_TRY_AGAIN, -signal.SIGKILL], printed
    assert f'resuming from step {stopped}' in printed[0]
    codes, printed = cluster.run()
    assert codes == [0, 0], printed
    assert_same_checkpoint(tmp_path / 'train/ckpt-12', undisturbed[0].folder / 'train/ckpt-12')


def test_others_ask_for_a_restart_where_a_worker_hangs(data_dir, tmp_path):
    with Cluster(tmp_path, data_dir).started(of_each=({}, {'STRIKE': f'7 SIGSTOP {tmp_path}/stopped'})) as (chief, _):
        printed, _ = chief.communicate(timeout=_SECONDS)
    assert chief.returncode == errors.EXIT_TRY_AGAIN, printed
    assert 'Another worker was lost, or a device of this one failed' in printed


def test_a_chief_with_a_full_disk_ends_without_waiting(data_dir, tmp_path):
    """It says why, and the other workers end too."""
    flag = '--model_params_override=train.max_steps=100000; train.save_interval_seconds=0'
    with Cluster(tmp_path, data_dir).started(flag) as (chief, other):
        while chief.poll() is None and not (tmp_path / 'train/checkpoint').exists():
            time.sleep(0.05)
        resource.prlimit(chief.pid, resource.RLIMIT_FSIZE, (1024, 1024))  # stands for the space that is left
        printed, _ = chief.communicate(timeout=_SECONDS)
        of_other, _ = other.communicate(timeout=_SECONDS)
    assert 'worker:0 has ended by an error. Do what its message says, then' in of_other
    assert [chief.returncode, other.returncode] == [1, 1], printed  # launchers take the largest


def test_workers_with_other_params_are_refused(data_dir, tmp_path):
    codes, printed = Cluster(tmp_path,
                             data_dir).run(flags_of_each=((), ('--model_params_override=train.max_steps=13',)))
    assert codes == [1, 1]
    for text in printed:
        assert 'worker:1 was started with other params, devices or input than worker:0. Start the same command' in text
    assert not (tmp_path / 'train').exists()


def test_layers_that_would_be_measured_are_refused_before_anybody_waits(tiny):
    config = cluster_config.ClusterConfig({'worker': ['127.0.0.1:1', '127.0.0.1:2']}, 'worker', 0)
    with pytest.raises(ValueError, match="partition_by='time' measures layers on each worker, which may then cut the "
                                         "model differently"):
        multi_worker_training.join(tiny.params(task__body__partition_by='time'), config)


def test_workers_that_are_missing_are_named_and_the_others_are_met(monkeypatch):
    monkeypatch.setattr(answers, 'SECONDS_TO_WAIT', 0.1)
    config = cluster_config.ClusterConfig({'worker': cluster_config.free_addresses(2)}, 'worker', 0)
    with pytest.raises(ConnectionError, match=r'no answer from worker:1 \(127.0.0.1:\d+\), of 2 workers'):
        multi_worker_training._meet(config)
    with answers.listening(config._replace(task_index=1)):
        multi_worker_training._meet(config)
