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


@pytest.mark.parametrize('name', ['ckpt-', 'model', 'ckpt-' + '9' * 30])
def test_a_list_names_a_step_for_each_checkpoint(tmp_path, name):
    (tmp_path / 'checkpoint').write_text(f'model_checkpoint_path: "{name}"\n')
    with pytest.raises(errors.TrainingError, match='which does not end in -STEP'):
        checkpoints.complete(str(tmp_path))
