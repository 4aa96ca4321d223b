import shutil

import numpy as np
import pytest
import tensorflow as tf

from lingpipe.devices import device_kinds
from lingpipe.training import checkpoint_contents, checkpointing, checkpoints, errors, experiment, train_program


@pytest.fixture
def make_program(tiny):
    """Function that returns a program of the tiny model that has not been trained."""

    def make(**overrides):
        params = tiny.params(**overrides)
        return train_program.TrainProgram(experiment.build_task(params, tf.TensorSpec([32, 8, 8, 1])), params.train)

    return make


def test_every_variable_is_named_by_its_layer(finished, stored):
    names = {name.removesuffix('/.ATTRIBUTES/VARIABLE_VALUE') for name in stored(finished.logdir / 'train/ckpt-12')}
    model = {'dense_1/000_kernel', 'dense_1/001_bias', 'batch_normalization_2/000_gamma',
             'batch_normalization_2/001_beta', 'batch_normalization_2/002_moving_mean',
             'batch_normalization_2/003_moving_variance', 'dense_4/000_kernel', 'dense_4/001_bias'}
    slots = {f'optimizer/SGD/{position:04d}' for position in range(7)}  # the iterations and six momenta
    expected = {f'{kind}/{name}' for kind in ('model', 'moving_average') for name in model}
    assert names == {'global_step', 'input_position', *slots, *expected}


def test_a_step_that_is_there_already_is_left_alone(make_program, tmp_path, contents):
    checkpointer = checkpointing.Checkpointer(tmp_path, make_program())
    path = checkpointer.save()
    before = contents(tmp_path)
    assert checkpointer.save() == path
    assert contents(tmp_path) == before


def test_a_constant_learning_rate_is_that_of_the_params(make_program, tmp_path):
    """The checkpoint does not restore another one."""
    constant = {'train__lr_schedule': None}
    saved = checkpointing.Checkpointer(tmp_path, make_program(train__learning_rate=0.5, **constant)).save()
    program = make_program(train__learning_rate=0.25, **constant)
    checkpointing.Checkpointer(tmp_path, program).restore(saved)
    assert float(program.learning_rate) == 0.25


def truncate(file):
    file.write_bytes(file.read_bytes()[:file.stat().st_size // 2])


def flip_a_byte(file):
    content = bytearray(file.read_bytes())
    content[100] ^= 1
    file.write_bytes(content)


def empty(file):
    file.write_bytes(b'')


DAMAGES = [(suffix, damage) for suffix in ('data-00000-of-00001', 'index')
           for damage in (truncate, flip_a_byte, empty)]


def test_what_is_damaged_is_named_and_the_checkpoint_before_it_taken(make_program, copied, contents, stored, caplog):
    program, newest, whole = make_program(), copied / 'train/ckpt-12', contents(copied)
    for suffix, damage in DAMAGES:
        damage(copied / f'train/ckpt-12.{suffix}')
        before = contents(copied)
        caplog.clear()
        checkpointer = checkpointing.Checkpointer(copied / 'train', program)
        assert checkpointer.restore_newest() == str(copied / 'train/ckpt-8')
        assert caplog.messages[-1].startswith(f'Checkpoint {newest} cannot be read (') and '{{' not in caplog.text
        assert f'Using {copied}/train/ckpt-8, the newest that can be read; nothing was deleted.' in caplog.messages[-1]
        assert program.global_step.numpy() == 8 and contents(copied) == before
        for file, content in whole.items():
            file.write_bytes(content)

    expected = stored(copied / 'train/ckpt-8')
    truncate(copied / 'train/ckpt-12.data-00000-of-00001')
    before = contents(copied)
    checkpointer = checkpointing.Checkpointer(copied / 'train', program, max_to_keep=2)
    checkpointer.restore_newest()
    program.global_step.assign(9)
    path = checkpointer.save()
    assert path == str(copied / 'train/ckpt-9') == tf.train.latest_checkpoint(copied / 'train')
    assert {file.stem
            for file in copied.glob('train/*.index')} == {'ckpt-8', 'ckpt-9', 'ckpt-12'}  # the damaged one stays
    assert all(before[file] == file.read_bytes() for file in copied.glob('train/ckpt-12*'))
    np.testing.assert_equal({**stored(path), **expected, 'global_step': 0}, {**expected, 'global_step': 0})
    program.global_step.assign(12)
    assert checkpointer.save() == str(newest)
    assert checkpointing.Checkpointer(copied / 'train', program).restore_newest() == str(newest)


def test_where_no_checkpoint_is_whole_nothing_is_trained_over(make_program, copied, contents):
    for file in copied.glob('train/ckpt-*.data*'):
        truncate(file)
    before = contents(copied)
    with pytest.raises(errors.TrainingError, match='None of the 4 checkpoints in .* can be read; the newest is '
                                                   '.*ckpt-12 .*logdir'):
        checkpointing.Checkpointer(copied / 'train', make_program()).restore_newest()
    assert contents(copied) == before


@pytest.mark.parametrize('state', [
    {'weights': tf.zeros([3])}, {'model': tf.Module(), 'save': tf.zeros([])}, {'global_step': tf.zeros([], tf.int64)}])
def test_a_foreign_checkpoint_is_refused_and_left_alone(make_program, tmp_path, contents, state):
    tracked = {name: tf.Variable(value) if tf.is_tensor(value) else value for name, value in state.items()}
    tf.train.CheckpointManager(tf.train.Checkpoint(**tracked), str(tmp_path), 5, checkpoint_name='ckpt').save()
    before = contents(tmp_path)
    checkpointer = checkpointing.Checkpointer(tmp_path, make_program())
    with pytest.raises(errors.TrainingError, match='ckpt-1 is of another model: .*nothing was changed'):
        checkpointer.restore_newest()
    assert contents(tmp_path) == before


@pytest.mark.parametrize('method, work', [
    ('write', lambda checkpointer: checkpointer.save()),
    ('read', lambda checkpointer: checkpointer.restore_newest())], ids=['write', 'read'])
def test_a_lost_worker_is_not_blamed_on_disk_or_checkpoint(make_program, copied, monkeypatch, method, work):
    def lose_worker(*unused, **unused_options):
        raise tf.errors.UnavailableError(None, None, 'Socket closed')

    monkeypatch.setattr(tf.train.Checkpoint, method, lose_worker)
    with pytest.raises(tf.errors.UnavailableError, match='^Socket closed$'):
        work(checkpointing.Checkpointer(copied / 'train', make_program()))


@pytest.fixture
def devices_are_hosts(monkeypatch):
    monkeypatch.setattr(device_kinds, 'host_of', lambda device: device)


def test_each_machine_writes_its_shard_where_all_see_the_folder(devices_are_hosts, tmp_path):
    assert checkpoint_contents.checkpoint_options(tmp_path, ['CPU:0', 'CPU:1']).experimental_io_device is None
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize('found', [None, b'of another folder of this name'])
def test_one_machine_writes_all_where_another_does_not_see_it(devices_are_hosts, tmp_path, monkeypatch, found):
    read = checkpoint_contents._read_on
    monkeypatch.setattr(checkpoint_contents, '_read_on', lambda host, path: found if host == 'CPU:1' else read(host, path))
    assert checkpoint_contents.checkpoint_options(tmp_path, ['CPU:0', 'CPU:1']).experimental_io_device == 'CPU:0'
    assert not list(tmp_path.iterdir())


def test_a_folder_that_was_deleted_meanwhile_gets_a_checkpoint_again(make_program, tmp_path):
    checkpointer = checkpointing.Checkpointer(tmp_path / 'train', make_program())
    for _ in range(2):  # the second time of the same step
        path = checkpointer.save()
        assert checkpoints.complete(tmp_path / 'train') == [path]
        shutil.rmtree(tmp_path / 'train')
