"""Two workers on loopback, as processes of their own: TensorFlow cannot leave a cluster."""

import os
import pathlib
import queue
import re
import resource
import signal
import subprocess
import sys
import threading
import time
import types
from unittest import mock

import numpy as np
import pytest

from lingpipe import layers
from lingpipe.cluster import cluster_config, peer_connections, server, waits, watchdog
from lingpipe.layers import batch_normalization
from lingpipe.placements import worker_training, workers
from lingpipe.training import errors, train_program, trainer
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

    def start(self, *flags, of_each=({}, {}), flags_of_each=((), ()), start_of_each=(_fork, _fork)):
        """Returns the two processes; `of_each`: for each worker what its environment has besides."""
        addresses = cluster_config.free_addresses(2)
        processes = []
        for index in range(2):
            config = cluster_config.ClusterConfig({'worker': addresses}, 'worker', index)
            processes.append(start_of_each[index](
                [str(PROGRAMS / 'run_worker.py'), '--model=struck_digits', f'--logdir={self.folder}',
                 '--cluster=multi_worker', '--cluster_network=all',
                 *flags, *flags_of_each[index]],
                 {**self._environment, 'TF_CONFIG': config.to_json(), **of_each[index]}))
        return processes

    def run(self, *flags, **of_each):
        """Returns for each worker its exit code and what it printed."""
        processes = self.start(*flags, **of_each)
        try:
            printed = [process.communicate(timeout=_SECONDS)[0] for process in processes]
        finally:
            for process in processes:
                process.kill()
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
    """A signal to one worker stops all after the same step; after a kill they resume by themselves."""
    cluster = Cluster(tmp_path, data_dir)
    codes, printed = cluster.run(of_each=({}, {'STRIKE': f'5 SIGTERM {tmp_path}/terminated'}),
                                 flags_of_each=((), ('--fail_when_stopped',)))
    assert codes == [0, errors.EXIT_TRY_AGAIN], printed
    stopped, = re.findall(r'Stopped by another worker at step (\d+); checkpoint', printed[0])
    assert f'worker:1 stopped by SIGTERM after step {stopped}, and with it all workers.' in printed[1]
    assert 1 <= int(stopped) < 12

    codes, printed = cluster.run('--max_restarts=5', '--fail_when_stopped', of_each=({}, {'STRIKE': f'11 SIGKILL {tmp_path}/killed'}))
    assert codes == [0, 0], printed
    assert 'The training was ended by SIGKILL; restart 1 of 5' in printed[1]
    assert f'The training ended with exit code {errors.EXIT_TRY_AGAIN}; restart 1 of 5' in printed[0]
    assert f'resuming from step {stopped}' in printed[0]
    assert_same_checkpoint(tmp_path / 'train/ckpt-12', undisturbed[0].folder / 'train/ckpt-12')


def test_training_continues_without_a_lost_worker_until_it_is_back(
        data_dir, tiny, tmp_path, assert_same_checkpoint):
    """Alone, a worker has the whole batch, and computes what one machine does from the step in its memory on."""
    cluster, other = Cluster(tmp_path / 'cluster', data_dir), Cluster(tmp_path / 'alone', data_dir)
    steps = '--model_params_override=train.steps_per_loop=2; train.max_steps'
    chief, lost = cluster.start(f'{steps}=12', '--replace_after_seconds=0.1',
                                of_each=({}, {'STRIKE': f'6 SIGKILL {tmp_path}/killed'}),
                                flags_of_each=(('--max_restarts=5',), ()))
    printed, _ = chief.communicate(timeout=_SECONDS)
    assert (chief.returncode, lost.wait()) == (0, -signal.SIGKILL), printed
    assert re.search(r'worker:1 \(127.0.0.1:\d+\) did not answer for 0.1 s \(--replace_after_seconds\): training '
                     r'continues over worker:0, each with 32 rows of a batch\.', printed)
    step, = re.findall(r'resuming from step (\d+)', printed)
    assert 0 < int(step) <= 6
    codes, printed = other.run(f'{steps}={step}')
    assert codes == [0, 0], printed
    params = tiny.params(train__steps_per_loop=2)
    params.task.body.layers[2] = layers.KerasParams(batch_normalization.BatchNormalization, group_size=2, momentum=0.9)
    trainer.Trainer(params, {}, tmp_path / 'alone').run()
    assert_same_checkpoint(tmp_path / 'cluster/train/ckpt-12', tmp_path / 'alone/train/ckpt-12')

    saves = 'train.save_interval_seconds=0; train.save_max_to_keep=100; train.steps_per_loop=2; train.max_steps'
    codes, printed = cluster.run(
        f'--model_params_override={saves}=1000000', '--replace_after_seconds=0.1',
        of_each=({'STRIKE': f'+20 SIGTERM {tmp_path}/terminated'}, {}), flags_of_each=(('--max_restarts=5',),) * 2)
    assert codes == [0, 0], printed
    assert 'All workers answer again: training continues over worker:0, worker:1.' in printed[0]
    assert 'worker:1 trains as number 1 of 2 workers.' in printed[1]
    assert 'Stopped by SIGTERM at step ' in printed[0]


def test_others_ask_for_a_restart_where_a_worker_hangs(data_dir, tmp_path):
    chief, hanging = Cluster(tmp_path, data_dir).start(of_each=({}, {'STRIKE': f'7 SIGSTOP {tmp_path}/stopped'}))
    try:
        printed, _ = chief.communicate(timeout=_SECONDS)
    finally:
        for process in (chief, hanging):
            process.kill()
    assert chief.returncode == errors.EXIT_TRY_AGAIN, printed
    assert 'Another worker was lost, or a device of this one failed' in printed


def test_a_chief_with_a_full_disk_ends_without_waiting(data_dir, tmp_path):
    """It says why, and the other workers end too."""
    chief, other = Cluster(tmp_path, data_dir).start('--model_params_override=train.max_steps=100000; '
                                                     'train.save_interval_seconds=0')
    try:
        while chief.poll() is None and not (tmp_path / 'train/checkpoint').exists():
            time.sleep(0.05)
        resource.prlimit(chief.pid, resource.RLIMIT_FSIZE, (1024, 1024))  # stands for the space that is left
        printed, _ = chief.communicate(timeout=_SECONDS)
        other.communicate(timeout=_SECONDS)
    finally:
        for process in (chief, other):
            process.kill()
    assert 'Free some space or choose another --logdir, then run the same command again.' in printed
    assert [chief.returncode, other.returncode] == [1, errors.EXIT_TRY_AGAIN], printed


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
        worker_training.join(tiny.params(task__body__partition_by='time'), config)


def test_a_chief_in_training_ends_after_another_worker(monkeypatch):
    told = queue.SimpleQueue()
    monkeypatch.setattr(peer_connections, '_SECONDS_FOR_TENSORFLOW', 0)
    monkeypatch.setattr(waits, 'end_process', told.put)
    config = cluster_config.ClusterConfig({'worker': cluster_config.free_addresses(2)}, 'worker', 0)
    joined = types.SimpleNamespace(config=config, watchdog=watchdog.Watchdog(0))
    with worker_training._Chief(joined, bool).minding(told.put):
        assert told.get(timeout=60).startswith('The process of worker:1 (127.0.0.1:')


def test_a_worker_that_is_replaceable_leaves_and_stops_nobody(tiny, monkeypatch, capsys):
    left = queue.SimpleQueue()
    monkeypatch.setattr(server, 'SECONDS_TO_LEAVE', .01)
    monkeypatch.setattr(worker_training.os, '_exit', left.put)
    program = mock.MagicMock(global_step=0)
    config = cluster_config.ClusterConfig({'worker': ['127.0.0.1:1', '127.0.0.1:2']}, 'worker', 1)
    joined = types.SimpleNamespace(config=config, index=1, devices=None, program=lambda *_: program)
    worker_training.Follower(tiny.params(), joined, is_replaceable=True)._stop()
    assert left.get(timeout=60) == 0
    program.stopping.assign.assert_not_called()
    assert 'worker:1 was asked to stop: it leaves in 0.01 s, or when training ends.' in capsys.readouterr().out


def test_a_worker_that_leaves_waits_for_others_who_stop_too(tiny, monkeypatch):
    """All get a signal, and the last checkpoint may take longer than a worker would wait."""
    program = mock.MagicMock(global_step=0)
    config = cluster_config.ClusterConfig({'worker': cluster_config.free_addresses(2)}, 'worker', 1)
    joined = types.SimpleNamespace(config=config, index=1, devices=None, program=lambda *_: program)
    follower = worker_training.Follower(tiny.params(), joined, is_replaceable=True)
    monkeypatch.setattr(follower, '_train', lambda *_: follower._stop())
    follower.run()
    follower._end.join(60)
    assert follower._end.finished.is_set()  # it was cancelled: 25 seconds are not over


def test_a_worker_names_the_chief_that_it_waits_for(monkeypatch):
    told, warned = [], threading.Event()
    monkeypatch.setattr(waits, '_FIRST_WARNING_SECONDS', .01)
    monkeypatch.setattr(waits.logging, 'warning', lambda *texts: (told.append(texts[-1]), warned.set()))
    config = cluster_config.ClusterConfig({'worker': ['127.0.0.1:1', '127.0.0.1:2']}, 'worker', 1)
    monkeypatch.setattr(train_program.TrainProgram, 'run', lambda program, iterator, num_steps: num_steps)
    program = object.__new__(workers.WorkerTrainProgram)
    program._workers = types.SimpleNamespace(config=config, watchdog=watchdog.Watchdog(0))
    program._num_calls, program._awaits_chief = 0, False
    program._of_chief = lambda number: 3 if warned.wait(60) else 0
    with program.watching_chief():
        assert program.run(None, 1) == 3
    assert told[0].startswith(
        'Still waiting for worker:0 (127.0.0.1:1), which writes or evaluates between steps after 0.')


def test_an_evaluation_of_a_chief_that_hangs_is_ended(monkeypatch):
    told = queue.SimpleQueue()
    monkeypatch.setattr(waits, 'end_process', told.put)
    monkeypatch.setattr(watchdog, 'silence_in_words', lambda config: f'{config.jobs["worker"][1]} does not answer.')
    config = cluster_config.ClusterConfig({'worker': ['127.0.0.1:1', '127.0.0.1:2']}, 'worker', 0)
    joined = types.SimpleNamespace(config=config, watchdog=watchdog.Watchdog(.01))
    chief = worker_training._Chief(joined, bool)
    with watchdog.Alone.minding(chief, told.put), chief.watch(kind='batch of an evaluation'):
        assert told.get(timeout=60).startswith(
            'No batch of an evaluation ended in 0.1 s (--step_timeout_seconds=0.01). 127.0.0.1:2 does not answer. ')


def test_another_worker_in_training_ends_after_the_chief(tiny, monkeypatch):
    told = queue.SimpleQueue()
    monkeypatch.setattr(peer_connections, '_SECONDS_FOR_TENSORFLOW', 0)
    monkeypatch.setattr(waits, 'end_process', told.put)
    program = mock.MagicMock(global_step=0)
    program.should_stop.side_effect = lambda _: told.get(timeout=60).startswith('The process of worker:0 (127.0.0.1:')
    config = cluster_config.ClusterConfig({'worker': cluster_config.free_addresses(2)}, 'worker', 1)
    joined = types.SimpleNamespace(config=config, index=1, devices=None, program=lambda *_: program)
    worker_training.Follower(tiny.params(), joined).run()
    program.should_stop.assert_called_once()
