import pathlib

import pytest
import tensorflow as tf

from lingpipe.training import checkpoints, errors


def test_a_list_of_ten_thousand_names_lists_its_folder_once(tmp_path, monkeypatch):
    (tmp_path / 'checkpoint').write_text('model_checkpoint_path: "ckpt-1"\n' + ''.join(
        f'all_model_checkpoint_paths: "ckpt-{step}"\n' for step in range(10_000)))
    tf.train.Checkpoint(step=tf.Variable(1)).write(str(tmp_path / 'ckpt-1'))
    listed, listdir = [], tf.io.gfile.listdir
    monkeypatch.setattr(tf.io.gfile, 'listdir', lambda path: listed.append(path) or listdir(path))
    assert checkpoints.complete(str(tmp_path)) == [str(tmp_path / 'ckpt-1')]
    assert len(listed) == 1


def test_a_checkpoint_that_is_being_deleted_does_not_count(tmp_path):
    """A process was killed between two files, before it wrote the list without the checkpoint."""
    manager = tf.train.CheckpointManager(tf.train.Checkpoint(step=tf.Variable(1)), str(tmp_path), 3, checkpoint_name='ckpt')
    oldest, middle, newest = (manager.save(checkpoint_number=step) for step in (1, 2, 3))
    pathlib.Path(f'{oldest}.index').unlink()
    assert checkpoints.complete(str(tmp_path)) == [newest, middle]
    pathlib.Path(f'{newest}.index').unlink()  # damaged, and named as such when it is read
    assert checkpoints.complete(str(tmp_path)) == [newest, middle]


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


@pytest.mark.parametrize('mark', [None, 'ckpt-1\n', 'ckpt-2', 'ckpt-20\n', '../ckpt-2\n', '\n'])
def test_files_that_no_process_was_writing_stay(folder, mark):
    """They are damaged and were left out of the list, or somebody put them there; a mark may be half written."""
    before = _names(folder)
    if mark:
        (folder / 'unfinished').write_text(mark)
    checkpoints.remove_unfinished(str(folder))
    assert _names(folder) == before


def test_without_a_list_nothing_is_removed_that_may_be_whole(folder):
    (folder / 'checkpoint').unlink()
    checkpoints.mark_unfinished(str(folder / 'ckpt-2'))
    checkpoints.remove_unfinished(str(folder))
    assert (folder / 'ckpt-2.index').exists()


@pytest.mark.parametrize('name', ['ckpt-', 'model', 'ckpt-' + '9' * 30])
def test_a_list_names_a_step_for_each_checkpoint(tmp_path, name):
    (tmp_path / 'checkpoint').write_text(f'model_checkpoint_path: "{name}"\n')
    with pytest.raises(errors.TrainingError, match='which does not end in -STEP'):
        checkpoints.complete(str(tmp_path))
