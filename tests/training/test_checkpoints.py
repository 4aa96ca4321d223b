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


@pytest.mark.parametrize('name', ['ckpt-', 'model', 'ckpt-' + '9' * 30])
def test_a_list_names_a_step_for_each_checkpoint(tmp_path, name):
    (tmp_path / 'checkpoint').write_text(f'model_checkpoint_path: "{name}"\n')
    with pytest.raises(errors.TrainingError, match='which does not end in -STEP'):
        checkpoints.complete(str(tmp_path))
