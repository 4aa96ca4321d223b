"""A chief and two workers on loopback, whatever happens to them."""

import pathlib
import re
import signal
import threading

import pytest
import tensorflow as tf

from lingpipe.cluster import answers, cluster_config, waits
from lingpipe.placements import pipeline_hosts
from tests import forked_programs

PROGRAMS = pathlib.Path(__file__).parents[1] / 'programs'
_SECONDS = 400  # an idle machine takes a tenth of it


@pytest.fixture(name='run')
def run_fixture(tmp_path, tiny):
    tiny.evaluation_inputs()['Test'].Instantiate()  # prepares the data

    def run(*flags, of_cluster=True, strikes=(), code=0, **variables):
        """Return what the processes, or one without a cluster, printed; `strikes`: 'BATCH SIGNAL TASK'; `code`: that
        with which the launcher ends."""
        strikes = [f'{batch} {name} {tmp_path}/struck_{batch} {tmp_path}/{task}'
                   for batch, name, task in map(str.split, strikes)]
        environment = {'PIDS': str(tmp_path), 'STRIKE': ';'.join(strikes), 'TFDS_DATA_DIR': tiny._data_dir,
                       'TF_CPP_MIN_LOG_LEVEL': '3', 'OMP_NUM_THREADS': '1', **variables}
        launcher = ['-m', 'lingpipe', 'local_cluster', '--workers=2', '--'] if of_cluster else []
        program = forked_programs.ForkedProgram(
            [*launcher, PROGRAMS / 'run_in_cluster.py', '--model=struck_digits.StruckTinyDigits', *flags], environment,
            tmp_path,
            has_one_output=True)
        printed, _ = program.communicate(timeout=_SECONDS)
        assert program.returncode == code, printed
        return printed

    return run


def test_stages_on_workers_survive_faults_and_equal_one_machine(
        run, tmp_path, stored, assert_close, assert_same_checkpoint):
    """Machines that see the log directory write their own shares of checkpoints."""
    steps = 'train.max_steps=28; train.save_interval_seconds=0'
    arguments = '--logdir=cluster', '--cluster=pipeline', f'--model_params_override={steps}', '--step_timeout_seconds=3'
    printed = run(*arguments, strikes=['6 SIGKILL worker:1'], code=75)
    assert 'Error: Worker 1 was lost in the middle of a step (' in printed
    run(*arguments, strikes=['12 SIGKILL chief:0'], code=128 + signal.SIGKILL)
    printed = run(*arguments, strikes=['17 SIGSTOP worker:0'], code=75)
    assert ' (--step_timeout_seconds=3). No answer came from worker:0.' in printed
    printed = run(*arguments, strikes=['20 SIGTERM worker:1'], code=75)
    assert '[worker 1] worker:1 was asked to stop, and has told the chief.' in printed
    step, = re.findall(r'Stopped by a signal to worker:1 at step (\d+); checkpoint', printed)
    assert int(step) < 28
    assert '[worker 0] worker:0 has ended.' in printed

    run('--logdir=alone', f'--model_params_override={steps}; train.steps_per_loop=1; train.save_max_to_keep=28',
        of_cluster=False)
    assert_same_checkpoint(tmp_path / f'cluster/train/ckpt-{step}', tmp_path / f'alone/train/ckpt-{step}')

    replicas = 'task.body.num_replicas=2; task.body.num_micro_batches=1'
    printed = run('--logdir=cluster', '--cluster=pipeline', f'--model_params_override={steps}; {replicas}')
    assert f'2 replicas of 1 micro-batches, resuming from step {step}' in printed
    assert all(f'worker:{worker}/CPU:{device}' in printed for worker, device in ((0, 0), (0, 1)))
    assert_close(stored(tmp_path / 'cluster/train/ckpt-28'), stored(tmp_path / 'alone/train/ckpt-28'))
    for each in step, 28:  # the step is the chief's, the weights the workers'
        assert len(list(tmp_path.glob(f'cluster/train/ckpt-{each}.data-*-of-00003'))) == 3


def test_training_continues_without_a_lost_worker_until_it_is_back(run, tmp_path, assert_same_checkpoint):
    """The first worker is lost, where TensorFlow's collective operations have their leader."""
    steps = 'train.steps_per_loop=2; train.save_interval_seconds=0; train.max_steps'
    printed = run(
        '--logdir=cluster', '--cluster=pipeline', f'--model_params_override={steps}=1000000',
        '--replace_after_seconds=0.1', strikes=['6 SIGKILL worker:0'], code=75, LEFT_OUT=str(tmp_path / 'cluster/control/left_out.json'))
    lost, = set(re.findall(r'No answer from worker:0 \(127.0.0.1:\d+\) for 0.1 s .*: training continues over worker:1\.', printed))
    resumed = re.findall(r'2 micro-batches, resuming from step (\d+)', printed)
    assert len(resumed) == 2, printed
    alone, back = resumed
    assert int(alone) <= 6
    assert 'Training is over worker:0, worker:1.' in printed
    step, = re.findall(r'Stopped by SIGTERM at step (\d+); checkpoint', printed)
    assert int(alone) < int(back) < int(step)
    for last in alone, back, step:
        run('--logdir=alone', f'--model_params_override={steps}={last}; task.body.num_partitions=2', of_cluster=False)
    assert_same_checkpoint(tmp_path / f'cluster/train/ckpt-{step}', tmp_path / f'alone/train/ckpt-{step}')


def test_reconnecting_without_end_ends_the_process(monkeypatch):
    sentences, has_ended = [], threading.Event()
    definition = tf.train.ServerDef()
    monkeypatch.setattr(pipeline_hosts.eager_context, 'get_server_def', lambda: definition)
    monkeypatch.setattr(pipeline_hosts.eager_context, 'update_server_def', lambda unused: has_ended.wait(60))
    monkeypatch.setattr(pipeline_hosts, '_SECONDS_TO_RECONNECT', 0.1)
    monkeypatch.setattr(answers, 'silence_in_words', lambda config: 'All answer.')
    monkeypatch.setattr(waits, 'end_process', lambda sentence: (sentences.append(sentence), has_ended.set()))
    jobs = {'chief': ['127.0.0.1:1'], 'worker': ['127.0.0.1:2', '127.0.0.1:3']}
    pipeline_hosts.reconnect(cluster_config.ClusterConfig(jobs, 'chief', 0, left_out=frozenset(['worker:0'])))
    assert sentences[0].startswith('Waited 0.1 s for connections to worker:1 (127.0.0.1:3). All answer.')
