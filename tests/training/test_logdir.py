import fcntl
import os
import platform

import pytest
import tensorflow as tf

from lingpipe.training import errors, logdir


def test_a_finished_run_is_laid_out_as_documented(finished):
    found = {str(path.relative_to(finished.logdir).parent / path.name.split('-')[0].split('.out.')[0])
             for path in finished.logdir.rglob('*') if path.is_file()}
    assert found == {
        'control/lock', 'control/params.txt', 'control/model_analysis.txt', 'control/versions.txt',
        'train/checkpoint', 'train/ckpt', 'train/events', 'eval_test/events', 'best/checkpoint',
        'best/ckpt', 'best/best.json'}


@pytest.mark.parametrize('name', ['exp[1]', 'exp*', 'exp?', 'a\\\\b'])
def test_a_path_that_tensorflow_takes_for_a_pattern_is_refused(tmp_path, name):
    with pytest.raises(ValueError, match='is a pattern for TensorFlow'):
        logdir.LogDir(tmp_path / name)


def test_a_disk_that_fills_up_leaves_the_old_file_whole(tmp_path, full_disk, contents):
    made = logdir.LogDir(tmp_path)
    made.create()
    made.write_control('old', 'old analysis')
    before = contents(tmp_path)
    with full_disk(), pytest.raises(tf.errors.OpError, match='params.txt.*File too large'):
        made.write_control('new text' * 1000, 'new analysis')
    assert {path: text for path, text in contents(tmp_path).items() if path.suffix != '.new'} == before


def test_what_is_recorded_is_read_again(tmp_path):
    run = logdir.LogDir(tmp_path)
    run.create()
    assert run.read_left_out() is None and run.read_versions() == {}
    run.write_control('a : 1', 'analysis')
    run.write_left_out(['worker:1'], 4)
    assert run.read_left_out() == (['worker:1'], 4) and run.read_versions()['python'] == platform.python_version()
    assert run.read('control', 'params.txt') == 'a : 1'


def test_a_second_holder_is_refused_and_the_first_is_named(tmp_path):
    run = logdir.LogDir(tmp_path)
    run.create()
    with run.lock():
        with pytest.raises(errors.TrainingError) as caught, logdir.LogDir(tmp_path).lock():
            pytest.fail('Both hold the lock.')
    assert str(caught.value).startswith(f'--logdir={tmp_path} is in use by another process (process {os.getpid()} on ')
    assert str(caught.value).endswith('Wait for its end, stop it, or choose another --logdir; nothing was changed.')
    with run.lock():
        pass


def test_what_cannot_be_locked_is_not(tmp_path, monkeypatch):
    with logdir.LogDir('gs://bucket/logs').lock():
        pass

    def refuse(stream, operation):
        raise OSError(37, 'No locks available')

    monkeypatch.setattr(fcntl, 'flock', refuse)
    run = logdir.LogDir(tmp_path)
    run.create()
    with run.lock():
        pass
