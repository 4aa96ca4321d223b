import pathlib

import pytest
import tensorflow as tf

from lingpipe.training import checkpoints, errors


def test_a_checkpoint_that_is_being_deleted_does_not_count(tmp_path):
    """A process was killed between two files, before it wrote the list without the checkpoint."""
    manager = tf.train.CheckpointManager(tf.train.Checkpoint(step=tf.Variable(1)), str(tmp_path), 3, checkpoint_name='ckpt')
    oldest, middle, newest = (manager.save(checkpoint_number=step) for step in (1, 2, 3))
    pathlib.Path(f'{oldest}.index').unlink()
    assert checkpoints.complete(str(tmp_path)) == [newest, middle]
    pathlib.Path(f'{newest}.index').unlink()  # damaged, and named as such when it is read
    assert checkpoints.complete(str(tmp_path)) == [newest, middle]


def test_a_checkpoint_that_is_replaced_meanwhile_is_no_damage(tmp_path, monkeypatch):
    """Training with save_max_to_keep=1 writes the next checkpoint between the reader's two looks."""
    manager = tf.train.CheckpointManager(tf.train.Checkpoint(step=tf.Variable(1)), str(tmp_path), 1, checkpoint_name='ckpt')
    manager.save(checkpoint_number=1)
    listdir, steps = tf.io.gfile.listdir, iter([2])

    def replaced(path):
        for step in steps:
            manager.save(checkpoint_number=step)
        return listdir(path)

    monkeypatch.setattr(tf.io.gfile, 'listdir', replaced)
    assert checkpoints.complete(str(tmp_path)) == [str(tmp_path / 'ckpt-2')]


@pytest.fixture
def folder(tmp_path):
    """Folder whose list names ckpt-1; ckpt-2 has all its files, but is not in the list."""
    checkpoint = tf.train.Checkpoint(step=tf.Variable(1))
    tf.train.CheckpointManager(checkpoint, str(tmp_path), 3, checkpoint_name='ckpt').save(checkpoint_number=1)
    checkpoint.write(str(tmp_path / 'ckpt-2'))
    return tmp_path


def _names(folder):
    return {path.name for path in folder.iterdir()}


def test_what_a_killed_process_was_writing_is_removed(folder):
    """It was killed after it wrote the index, or while it replaced the list."""
    whole = {name for name in _names(folder) if not name.startswith('ckpt-2.')}
    checkpoints.mark_unfinished(str(folder / 'ckpt-2'))
    (folder / 'checkpoint.new').write_text('half')
    checkpoints.remove_unfinished(str(folder))
    assert _names(folder) == whole


@pytest.mark.parametrize('mark', [None, 'ckpt-1\n', 'ckpt-20\n', '\n', 'ckpt-2'])
def test_files_that_no_process_was_writing_stay(folder, mark):
    """They are damaged and were left out of the list, or somebody put them there; a mark without its end is half one."""
    before = _names(folder)
    if mark:
        (folder / 'unfinished').write_text(mark)
    checkpoints.remove_unfinished(str(folder))
    assert _names(folder) == before


def test_without_a_list_only_what_is_being_written_does_not_count(folder):
    (folder / 'checkpoint').unlink()
    checkpoints.mark_unfinished(str(folder / 'ckpt-2'))
    with pytest.raises(errors.TrainingError, match='To resume from ckpt-1 write model_checkpoint_path: "ckpt-1" into it'):
        checkpoints.complete(str(folder))
    checkpoints.delete(str(folder / 'ckpt-1'))
    assert checkpoints.complete(str(folder)) == []


def test_a_checkpoint_that_is_deleted_before_it_is_read_is_passed_over(tmp_path):
    def write(name):
        for ending in ('index', 'data-00000-of-00001'):
            (tmp_path / f'{name}.{ending}').touch()
        (tmp_path / 'checkpoint').write_text(f'model_checkpoint_path: "{name}"\n')

    def read(path):
        if path.endswith('ckpt-1'):
            for file in tmp_path.glob('ckpt-1.*'):
                file.unlink()
            write('ckpt-2')
            raise errors.TrainingError('There is no checkpoint.')

    write('ckpt-1')
    assert checkpoints.read_newest(str(tmp_path), read) == (str(tmp_path / 'ckpt-2'), [])


@pytest.mark.parametrize('name', ['none_yet', 'other/', 'notes'])
def test_what_is_no_checkpoint_in_the_list_is_never_deleted(folder, name):
    (folder / '.hidden').write_text('mine')
    (folder / 'notes.txt').write_text('mine')
    (folder / 'checkpoint').write_text(
        ''.join(f'all_model_checkpoint_paths: "{path}"\n' for path in (name, 'ckpt-1')) + 'model_checkpoint_path: "ckpt-1"\n')
    checkpoints.delete_old(str(folder), 1)
    assert checkpoints.complete(str(folder)) == [str(folder / 'ckpt-1')]
    assert (folder / '.hidden').exists() and (folder / 'notes.txt').exists()
