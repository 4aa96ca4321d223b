"""The jobs of deploy/slurm on a real Slurm: they train to the end, whatever is done to their tasks."""

import contextlib
import os
import re
import signal
import subprocess

import pytest

from lingpipe.training import checkpoints

_STEPS = 'train.max_steps=60; train.steps_per_loop=1; train.save_interval_seconds=0; train.save_max_to_keep=100'
_MODEL = '--model=tiny_digits'


def _words(logdir, overrides=_STEPS):
    return [_MODEL, f'--logdir={logdir}', f'--model_params_override={overrides}']


def _resumes(count):
    """Return a function of the output: whether training has resumed so often."""
    return lambda output: len(re.findall(r'resuming from step \d+', output)) >= count


@pytest.fixture(name='data_dir')
def data_dir_fixture(tiny):
    tiny.evaluation_inputs()['Test'].Instantiate()  # prepares the data
    return tiny._data_dir


def _wait_until_saved(slurm, job, logdir):
    """Wait until a checkpoint is in the list of the complete ones, which is later than its files are there."""
    slurm.wait_for(job, lambda output: checkpoints.complete(slurm.folder / logdir / 'train'))


def _kill_once_saved(slurm, job, logdir, rank):
    _wait_until_saved(slurm, job, logdir)
    os.kill(slurm.process_of(job, rank), signal.SIGKILL)


def test_a_pipeline_survives_kills_and_a_requeue_bit_for_bit(slurm, data_dir, tiny, tmp_path, assert_same_checkpoint):
    """The reference is one machine."""
    endless = _STEPS.replace('=60', '=100000')
    job = slurm.submit('pipeline.sbatch', *_words('pipeline', endless), options=['--nodes=3'], TFDS_DATA_DIR=data_dir)
    output = slurm.wait_for(job, lambda output: 'First step after' in output and output)
    assert re.search(r'Cluster by Slurm step \d+.0: this is worker:1 of 1 chief, 2 workers\.', output)
    _kill_once_saved(slurm, job, 'pipeline', rank=2)
    slurm.wait_for(job, _resumes(1))
    os.kill(slurm.process_of(job, 0), signal.SIGKILL)
    slurm.wait_for(job, _resumes(2))
    slurm.command('scancel', '--signal=TERM', job)  # all tasks at once; the batch script goes on
    slurm.wait_for(job, _resumes(3))
    slurm.command('scancel', '--batch', '--signal=USR1', job)  # as two minutes before the time limit
    slurm.wait_for_state(job, 'PENDING')
    # All tasks get the signal at once: the chief names its own, or that of a worker which was faster.
    stopped = re.findall(r'Stopped by .+ at step (\d+); checkpoint', slurm.output(job))[-1]
    assert 'retracing' not in slurm.output(job)
    slurm.command('scancel', job)
    tiny.only_train(tmp_path / 'alone', train__max_steps=int(stopped), train__steps_per_loop=1)
    assert_same_checkpoint(slurm.folder / f'pipeline/train/ckpt-{stopped}', tmp_path / f'alone/train/ckpt-{stopped}')


def test_workers_survive_a_kill_bit_for_bit_and_resume_with_others(slurm, data_dir, assert_same_checkpoint):
    job = slurm.submit('multi_worker.sbatch', *_words('killed'), TFDS_DATA_DIR=data_dir)
    other = slurm.submit('multi_worker.sbatch', *_words('undisturbed'), TFDS_DATA_DIR=data_dir)  # on the same nodes
    _kill_once_saved(slurm, job, 'killed', rank=1)
    killed = slurm.end(job)
    assert _resumes(1)(killed) and 'Final Test after 60 steps' in killed
    slurm.end(other)
    assert_same_checkpoint(slurm.folder / 'killed/train/ckpt-60', slurm.folder / 'undisturbed/train/ckpt-60')
    job = slurm.submit('multi_worker.sbatch', *_words('killed', _STEPS.replace('=60', '=64')),
                       options=['--nodes=1', '--ntasks-per-node=1'], TFDS_DATA_DIR=data_dir)
    assert 'resuming from step 60 of 64' in slurm.end(job)


def test_a_flag_tells_parameter_servers_and_one_may_be_killed(slurm, data_dir):
    job = slurm.submit('parameter_server.sbatch', *_words('servers'), TFDS_DATA_DIR=data_dir)
    _kill_once_saved(slurm, job, 'servers', rank=1)
    output = slurm.end(job)
    assert 'this is ps:0 of 1 chief, 1 parameter server, 2 workers.' in output
    assert _resumes(1)(output) and 'Final Test after ' in output
    assert not re.search(r'^[IW]0000 .*', output, re.MULTILINE), 'lines of TensorFlow that concern no user'


def test_an_error_that_a_person_must_see_ends_the_job(slurm, data_dir):
    job = slurm.submit('multi_worker.sbatch', *_words('wrong', 'task.body.num_partitions=0'), TFDS_DATA_DIR=data_dir,
                       options=['--nodes=1', '--ntasks-per-node=1'])
    slurm.wait_for_state(job, 'FAILED')
    assert slurm.output(job).count('num_partitions=0 is not possible') == 1


def test_a_job_resumes_after_a_node_went_down(slurm, data_dir):
    job = slurm.submit('multi_worker.sbatch', *_words('node', _STEPS.replace('=60', '=100000')),
                       options=['--nodelist=127.0.0.[2-3]'], TFDS_DATA_DIR=data_dir)
    _wait_until_saved(slurm, job, 'node')
    slurm.command('scontrol', 'update', 'NodeName=127.0.0.3', 'State=DOWN', 'Reason=test')
    slurm.wait_for_state(job, 'PENDING')
    slurm.command('scontrol', 'update', f'JobId={job}', 'StartTime=now')  # else it waits for two minutes
    with contextlib.suppress(subprocess.CalledProcessError):  # it is back by itself once it answers
        slurm.command('scontrol', 'update', 'NodeName=127.0.0.3', 'State=RESUME')
    slurm.wait_for(job, _resumes(1))


def test_a_pipeline_continues_without_a_node_that_went_down(slurm, data_dir):
    """Slurm ends a step with its first task that fails unless it is told otherwise."""
    words = ' '.join(f"'{word}'" for word in _words('continued', _STEPS.replace('=60', '=100000')))
    job = slurm.command(
        'sbatch', '--parsable', '--output=%j.log', '--no-kill', '--nodes=3', '--ntasks=3', f'--export=ALL,TFDS_DATA_DIR={data_dir}',
        '--wrap', f'srun --no-kill --kill-on-bad-exit=0 lingpipe train --cluster=pipeline --trusted_network '
        f'--replace_after_seconds=1 {words}')
    _wait_until_saved(slurm, job, 'continued')
    slurm.command('scontrol', 'update', 'NodeName=127.0.0.3', 'State=DOWN', 'Reason=test')
    with contextlib.suppress(ValueError, ProcessLookupError):  # Slurm may have ended it already
        os.kill(slurm.process_of(job, 2), signal.SIGKILL)
    slurm.wait_for(job, lambda output: 'training continues over worker:0.' in output)
    slurm.wait_for(job, lambda output: output.count('First step after') == 2)
