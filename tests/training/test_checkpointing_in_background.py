"""Checkpoints that are written while training continues."""

import threading

import numpy as np
import pytest
import tensorflow as tf

from lingpipe.training import checkpointing, checkpoints, experiment, train_program


@pytest.fixture
def held_writes(monkeypatch):
    """Event without which no checkpoint is written."""
    allowed, save = threading.Event(), tf.train.Checkpoint.write

    def save_when_allowed(*args, **kwargs):
        assert allowed.wait(60)
        return save(*args, **kwargs)

    monkeypatch.setattr(tf.train.Checkpoint, 'write', save_when_allowed)
    return allowed


# After step 1, steps 2 to 12 are one call, so that progress is told of once.
SAVES_AT_1_AND_12 = {
    'train__save_interval_seconds': 0.0, 'train__steps_per_loop': 11, 'train__summary_interval_steps': 0}


@pytest.fixture
def program(tiny):
    params = tiny.params()
    return train_program.TrainProgram(experiment.build_task(params, tf.TensorSpec([32, 8, 8, 1])), params.train)


def test_a_checkpoint_counts_when_all_of_it_is_written(program, tmp_path, held_writes, stored):
    checkpointer, listed = checkpointing.Checkpointer(tmp_path, program), []
    values = {f'model/{name}/.ATTRIBUTES/VARIABLE_VALUE': variable.numpy()
              for name, variable in program.named_variables.items()}
    path = checkpointer.begin_save(then=lambda: listed.extend(checkpoints.complete(tmp_path)))
    for variable in program.named_variables.values():
        variable.assign(variable + 1)
    program.global_step.assign(1)
    assert not checkpoints.complete(tmp_path) and not listed
    held_writes.set()
    assert checkpointer.save() == str(tmp_path / 'ckpt-1')
    assert path == str(tmp_path / 'ckpt-0') and listed == [path]
    assert checkpoints.complete(tmp_path) == [str(tmp_path / 'ckpt-1'), path]
    for name, value in values.items():
        np.testing.assert_array_equal(stored(path)[name], value)
        np.testing.assert_array_equal(stored(tmp_path / 'ckpt-1')[name], value + 1)


def test_training_goes_on_while_a_checkpoint_is_written(
        tiny, finished, tmp_path, held_writes, after_update, assert_same_checkpoint):
    after_update(lambda step: held_writes.set())
    tiny.only_train(tmp_path, **SAVES_AT_1_AND_12)
    for name in ('ckpt-1', 'ckpt-12'):
        assert_same_checkpoint(tmp_path / 'train' / name, finished.logdir / 'train' / name)


def test_where_saves_are_not_async_no_step_begins_before_the_end(tiny, tmp_path, after_update):
    after_update(lambda step: saved.append(checkpoints.complete(tmp_path / 'train')))
    saved = []
    tiny.only_train(tmp_path, train__save_async=False, **SAVES_AT_1_AND_12)
    assert saved == [[str(tmp_path / 'train/ckpt-1')]]


def test_an_error_of_the_thread_ends_training_at_the_next_step(
        tiny, tmp_path, monkeypatch, full_disk, after_update, finished, assert_same_checkpoint):
    save, failed = tf.train.Checkpoint.write, threading.Event()

    def save_to_full_disk(*args, **kwargs):
        try:
            with full_disk():
                return save(*args, **kwargs)
        finally:
            failed.set()

    with monkeypatch.context() as patch:
        patch.setattr(tf.train.Checkpoint, 'write', save_to_full_disk)
        after_update(lambda step: failed.wait(60))
        with pytest.raises(tf.errors.OpError, match=f'{tmp_path}/train/ckpt-1.*File too large'):
            tiny.only_train(tmp_path, **SAVES_AT_1_AND_12)
    assert checkpoints.complete(tmp_path / 'train') == [] and not list(tmp_path.glob('train/ckpt-1.*'))
    tiny.only_train(tmp_path, **SAVES_AT_1_AND_12)
    assert_same_checkpoint(tmp_path / 'train/ckpt-12', finished.logdir / 'train/ckpt-12')


def test_another_error_leaves_the_checkpoint_under_way_whole(
        tiny, tmp_path, held_writes, after_update, finished, assert_same_checkpoint):
    def fail(step):
        threading.Timer(0.1, held_writes.set).start()
        raise RuntimeError('broken')

    after_update(fail)
    with pytest.raises(RuntimeError, match='^broken$'):
        tiny.only_train(tmp_path, **SAVES_AT_1_AND_12)
    assert checkpoints.complete(tmp_path / 'train') == [f'{tmp_path}/train/ckpt-1']
    assert_same_checkpoint(tmp_path / 'train/ckpt-1', finished.logdir / 'train/ckpt-1')
