import platform

import pytest
import tensorflow as tf

from lingpipe.training import checkpoint_contents, checkpoints, errors, logdir


def test_a_finished_run_is_laid_out_as_documented(finished):
    found = {str(path.relative_to(finished.logdir).parent / path.name.split('-')[0].split('.out.')[0])
             for path in finished.logdir.rglob('*') if path.is_file()}
    assert found == {
        'control/lock', 'control/params.txt', 'control/model_analysis.txt', 'control/versions.txt', 'train/checkpoint',
        'train/ckpt', 'train/events',
        'eval_test/events', 'best/checkpoint', 'best/ckpt', 'best/best.json'}


def test_the_params_of_a_run_read_back(finished, tiny):
    written = tiny.params(train__save_interval_seconds=0.0, eval__interval_steps=4)
    text = logdir.LogDir(finished.logdir).read_params()
    assert text == written.ToText()
    fresh = tiny.params(train__max_steps=99, task__name='other', **{'task__body__layers[1]__units': 5})
    assert fresh != written
    assert fresh.FromText(text) == written


def test_the_analysis_of_a_run_has_every_layer_and_partition(finished):
    text = (finished.logdir / 'control/model_analysis.txt').read_text()
    for name in ('flatten_0', 'dense_1', 'batch_normalization_2', 'dropout_3', 'dense_4', 'CPU:0', 'CPU:1'):
        assert name in text
    assert '1,242 parameters' in text and text.endswith('\n')


def test_a_new_folder_has_neither_params_nor_a_best_metric(tmp_path):
    made = logdir.LogDir(tmp_path / 'a/b')
    assert not list(tmp_path.iterdir())
    made.create()
    assert made.read_params() is None and made.read_best('loss') is None
    assert made.evaluation('Dev') == str(tmp_path / 'a/b/eval_dev')
    assert sorted(path.name for path in (tmp_path / 'a/b').iterdir()) == ['control', 'train']
    assert not list((tmp_path / 'a/b/control').iterdir())


def test_the_home_folder_may_be_written_as_a_tilde(tmp_path, monkeypatch):
    monkeypatch.setenv('HOME', str(tmp_path))
    assert logdir.LogDir('~/logs').path == str(tmp_path / 'logs')


def test_the_best_metric_reads_back(tmp_path):
    made = logdir.LogDir(tmp_path)
    (tmp_path / 'best').mkdir()
    made.write_best(7, 'accuracy', 0.9876543210987654)
    assert logdir.LogDir(tmp_path).read_best('accuracy') == (7, 0.9876543210987654)
    assert logdir.LogDir(tmp_path).read_best('loss') is None


@pytest.mark.parametrize('name', ['exp[1]', 'exp*', 'exp?', 'a\\\\b'])
def test_a_path_that_tensorflow_takes_for_a_pattern_is_refused(tmp_path, name):
    with pytest.raises(ValueError, match='takes such a path of checkpoints for a pattern'):
        logdir.LogDir(tmp_path / name)
    with pytest.raises(ValueError, match='takes such a path of checkpoints for a pattern'):
        checkpoint_contents.stored_shapes(str(tmp_path / name / 'train/ckpt-1'))


@pytest.mark.parametrize('name', ['exp{1,2}', 'a b', 'ü', 'a#b%20', 'q\"r', 'a:b', 'a/'])
def test_other_odd_paths_hold_checkpoints(tmp_path, name):
    folder, variable = logdir.LogDir(f'{tmp_path}/{name}').train, tf.Variable(1.)
    checkpoints.begin_list(folder)
    for step in (1, 2, 3):
        checkpoints.add(tf.train.Checkpoint(v=variable).write(f'{folder}/ckpt-{step}'))
        checkpoints.delete_old(folder, 2)
    assert checkpoints.complete(folder) == [f'{folder}/ckpt-3', f'{folder}/ckpt-2']
    assert checkpoints.files_of(f'{folder}/ckpt-1') == []
    checkpoint_contents.read_state(f'{folder}/ckpt-3', {'v': variable})


def test_a_folder_below_a_file_is_refused(tmp_path):
    (tmp_path / 'file').touch()
    with pytest.raises(errors.TrainingError, match=r'file/logs cannot be written to \(.*file is not a directory\). '
                                                   r'Choose a folder'):
        logdir.LogDir(tmp_path / 'file/logs').create()


def test_a_folder_that_is_there_but_cannot_be_written_to_is_refused(tmp_path, monkeypatch):
    def refuse(path, mode):
        raise tf.errors.PermissionDeniedError(None, None, f'{path}; Permission denied')

    monkeypatch.setattr(tf.io.gfile, 'GFile', refuse)
    with pytest.raises(errors.TrainingError, match=r'cannot be written to \(Permission denied\). Choose a folder'):
        logdir.LogDir(tmp_path).create()


def test_a_disk_that_fills_up_leaves_the_old_file_whole(tmp_path, full_disk, contents):
    made = logdir.LogDir(tmp_path)
    made.create()
    made.write_control('old', 'old analysis')
    before = contents(tmp_path)
    with full_disk(), pytest.raises(errors.TrainingError, match='params.txt could not be written .File too large..'):
        made.write_control('new text' * 1000, 'new analysis')
    assert contents(tmp_path) == before


@pytest.mark.parametrize('text', ['', '{}', '[]', '{"value": "a"}', '{"value": NaN}', '{"value": 1' + '0' * 400 + '}'])
def test_a_damaged_best_metric_says_what_to_do(tmp_path, text):
    (tmp_path / 'best').mkdir()
    (tmp_path / 'best/best.json').write_text(text)
    with pytest.raises(errors.TrainingError, match='best.json .*Delete it, or choose another --logdir'):
        logdir.LogDir(tmp_path).read_best('accuracy')


@pytest.mark.parametrize('text', ['keras', 'keras 3.15.1\n\nnumpy 2.0', 'a' * 100_000])
def test_a_damaged_list_of_versions_says_what_to_do(tmp_path, text):
    (tmp_path / 'control').mkdir()
    (tmp_path / 'control/versions.txt').write_text(text)
    with pytest.raises(errors.TrainingError, match='versions.txt is damaged .*Delete it, or choose another --logdir'):
        logdir.LogDir(tmp_path).read_versions()


def test_versions_read_back(tmp_path):
    run = logdir.LogDir(tmp_path)
    assert run.read_versions() == {}
    run.create()
    run.write_control('a : 1', 'analysis')
    assert run.read_versions()['python'] == platform.python_version()


@pytest.mark.parametrize('text', ['[]', '{}', '{"left_out": 3, "num_devices": 1}', '{"left_out": [3], "num_devices": 1}', '{"left_out": ["ps:0"], "num_devices": 1}',
                                  '{"left_out": [], "num_devices": "1"}', '{"left_out": [], "num_devices": -1}'])
def test_a_damaged_list_of_workers_says_what_to_do(tmp_path, text):
    run = logdir.LogDir(tmp_path)
    run.create()
    run.write_left_out(['worker:1'], 4)
    assert run.read_left_out() == (['worker:1'], 4)
    (tmp_path / 'control/left_out.json').write_text(text)
    with pytest.raises(errors.TrainingError, match='left_out.json is damaged .*Delete it, or choose another --logdir'):
        run.read_left_out()
